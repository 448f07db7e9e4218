package check

import (
	"fmt"
	"net/netip"

	"smartcookie/internal/control"
	"smartcookie/internal/policy"
)

func judgeAgents(f *Facts) []Finding {
	if f.Agent.Attached && !f.Agent.Daemon {
		return []Finding{daemon.finding(Warning, "an agent is attached, and no daemon of it is seen", "SHAPE", string(f.Shape))}
	}
	if !f.Agent.Attached {
		return []Finding{daemon.skip()}
	}
	return nil
}

// peer is one that the configuration names.
type peer struct {
	id      uint32
	name    string
	address netip.AddrPort
}

func judgePeers(f *Facts) (found []Finding) {
	skipped := []Finding{peerSilent.skip(), peerKey.skip(), peerClock.skip(), peerEpoch.skip(), peerDiffers.skip()}
	if f.Shape != Edge && f.Shape != Server {
		return nil
	}
	if f.Control == nil {
		return append(skipped, noControl.finding(Notice, "there is no section `control`"))
	}
	if !f.Agent.Daemon || f.Agent.Peers == nil {
		return skipped // who speaks is the daemon
	}
	var peers []peer
	for _, a := range f.Control.Agents {
		peers = append(peers, peer{a.ID, fmt.Sprintf("agent %d", a.ID), a.Address})
	}
	for _, e := range f.Control.Edges {
		peers = append(peers, peer{e.ID, fmt.Sprintf("edge %d", e.ID), e.Address})
	}
	for _, p := range peers {
		known, heard := f.Agent.Peers[p.id]
		found = append(found, judgePeer(f, p, known, heard)...)
	}
	return found
}

func judgePeer(f *Facts, p peer, known control.Peer, heard bool) (found []Finding) {
	pairs := []string{"PEER", p.name, "ADDRESS", p.address.String(), "FILE", f.Keys.Path}
	add := func(t *Topic, s Severity, what string) {
		found = append(found, t.finding(s, fmt.Sprintf("%s (%s) %s", p.name, p.address, what), pairs...))
	}
	silent := known.Phase == control.Silent
	if f.Shape == Server {
		silent = f.Agent.Now-known.Heard > control.Silence
	} else {
		heard = heard && known.Phase != control.Unheard
	}
	switch {
	case !heard:
		add(peerSilent, Warning, "has not been heard")
	case silent:
		add(peerSilent, Warning, "is silent")
	}
	d := known.Disagreements
	for _, c := range []struct {
		of   control.Disagreement
		t    *Topic
		s    Severity
		what string
	}{
		{control.DisagreeKey, peerKey, Error, "has other keys"},
		{control.UnheardKey, peerKey, Error, "is not believed: most likely it has other keys"},
		{control.DisagreeClock, peerClock, Error, "has a clock that differs by more than half an epoch"},
		{control.UnheardClock, peerClock, Error, "is not believed: most likely its clock differs"},
		{control.DisagreeEpochLength, peerEpoch, Error, "has epochs of another length"},
		{control.DisagreeScale, peerDiffers, Warning, "has another window scale"},
		{control.DisagreeMSS, peerDiffers, Warning, "has an MSS that is larger than the server's MTU allows"},
		{control.DisagreeMode, peerDiffers, Warning, "has a service off that is defended here, or the other way round"},
	} {
		if d&c.of != 0 {
			add(c.t, c.s, c.what)
		}
	}
	return found
}

func judgeSizes(f *Facts) (found []Finding) {
	flows, source := max(f.Sockets, 0), "this host has"
	if f.Shape == Edge {
		flows, source = f.Tracked, "connection tracking has"
		if f.InFilter > flows {
			flows, source = f.InFilter, "the filter has about"
		}
	}
	const spare = 2 // a flow stays for one to two generations, and there are more tomorrow
	if f.Flows > 0 && flows > f.Flows {
		found = append(found, filterSize.finding(Warning,
			fmt.Sprintf("%s %d flows; the filter is made for %d", source, flows, f.Flows), "FLOWS", fmt.Sprint(spare*flows)))
	}
	if f.Memory > 0 && f.Filter > f.Memory/2 {
		found = append(found, filterMemory.finding(Warning,
			fmt.Sprintf("the filter of %d flows takes %d MiB of %d MiB", f.Flows, f.Filter>>20, f.Memory>>20), "FLOWS", fmt.Sprint(f.Flows/4)))
	}
	if f.Shape == Server && translates(f.Services) && f.Sockets > f.Places {
		found = append(found, translatedSize.finding(Warning,
			fmt.Sprintf("this host has %d connections, and places for %d that are translated", f.Sockets, f.Places), "FLOWS", fmt.Sprint(spare*f.Sockets)))
	}
	return found
}

func translates(services []policy.Service) bool {
	for i := range services {
		if services[i].Setup != policy.Native {
			return true
		}
	}
	return false
}
