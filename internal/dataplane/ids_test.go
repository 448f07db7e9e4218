package dataplane

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// named makes services that differ in their names alone.
func named(names ...string) (all []policy.Service) {
	for _, name := range names {
		all = append(all, policy.Service{Name: name})
	}
	return all
}

// idsByName is what a next agent finds.
func idsByName(services []policy.Service, given identities) map[string]uint16 {
	had := make(map[string]uint16, len(services))
	for i := range services {
		had[services[i].Name] = given.ids[i]
	}
	return had
}

func TestServiceKeepsItsIDWhileOthersComeAndGo(t *testing.T) {
	random := newRandom(t)
	had := map[string]uint16{}
	for round := range 300 {
		var names []string
		most := 1 + random.IntN(policy.MaxServices) // small sets, and such as leave no id free
		for _, n := range random.Perm(policy.MaxServices * 3 / 2)[:most] {
			names = append(names, fmt.Sprint(n))
		}
		services := named(names...)
		given := identify(services, had)
		now := idsByName(services, given)
		owner := make(map[uint16]string)
		for name, id := range now {
			if before, stays := had[name]; stays && before != id {
				t.Fatalf("round %d: service %s had id %d and has %d", round, name, before, id)
			}
			if _, stays := had[name]; stays == slices.Contains(given.fresh, id) {
				t.Fatalf("round %d: id %d of service %s: fresh: %v", round, id, name, !stays)
			}
			if id == 0 || id > policy.MaxServices || owner[id] != "" {
				t.Fatalf("round %d: services %q and %q have id %d", round, owner[id], name, id)
			}
			owner[id] = name
		}
		had = now
	}
}

func TestIDOfAServiceThatGoesIsTheLastToBeGivenAgain(t *testing.T) {
	given := identify(named("stays", "comes"), map[string]uint16{"goes": 1, "stays": 2})
	if want := []uint16{2, 3}; !slices.Equal(given.ids, want) {
		t.Errorf("ids %d, want %d", given.ids, want)
	}
}

// reloaded is an edge that has taken over what the one before has pinned.
func reloaded(t *testing.T, pins *Pins, all []policy.Service) edgeAgent {
	t.Helper()
	e := loadedEdgeAt(t, pins, func(c *EdgeConfig) { c.Services, c.Learn = all, time.Hour })
	e.config.Outside, e.config.Inside = nil, nil // programs are run, not attached
	if err := e.Attach(pins); err != nil {
		t.Fatal(err)
	}
	return agentOf(t, e)
}

// counts are what is counted of a service, by verdict.
func (e edgeAgent) counts(name string) []uint64 {
	e.t.Helper()
	states, err := e.edge().States()
	if err != nil {
		e.t.Fatal(err)
	}
	at := slices.IndexFunc(states, func(s ServiceState) bool { return s.Name == name })
	if at < 0 {
		e.t.Fatalf("no service %q", name)
	}
	counts, err := e.ServiceVerdicts(int(states[at].ID))
	if err != nil {
		e.t.Fatal(err)
	}
	return counts
}

// without leaves out the services of these ids, and turns the others round.
func without(ids ...int) (all []policy.Service) {
	for i := range services {
		if !slices.Contains(ids, i+1) {
			all = append(all, services[i])
		}
	}
	slices.Reverse(all)
	return all
}

func TestServiceKeepsWhatIsKnownOfItWhileOthersComeAndGo(t *testing.T) {
	_, pins := ownPins(t, EdgeAgent)
	e := reloaded(t, pins, services)
	e.want("a SYN", syn4(linuxOptions), "answer_syn")
	for _, id := range []int{authCookie, authFull} {
		e.meet(id, to(syn4(linuxOptions), challenged4[id]))
	}
	if err := e.Detectors.Put(uint32(ssh), edgeDetector{TimesOn: 7}); err != nil {
		t.Fatal(err)
	}
	kept, listed := e.counts("web"), e.entries()

	e = reloaded(t, pins, without(authCookie, off))
	if now := e.counts("web"); !slices.Equal(now, kept) {
		t.Errorf("web has counted %d, and then %d", kept, now)
	}
	states, err := e.edge().States()
	if err != nil {
		t.Fatal(err)
	}
	if states[ssh-1].Name != "ssh" || states[ssh-1].TimesOn != 7 {
		t.Errorf("of ssh is known %+v", states[ssh-1])
	}
	if now := e.entries(); len(now) != len(listed) {
		t.Errorf("%d sources are listed, want %d: an id that was not given again is not looked at", len(now), len(listed))
	}

	fresh := services[web-1]
	fresh.Name, fresh.Prefixes = "fresh", prefixes("198.18.20.7/32")
	again := fresh
	again.Name, again.Prefixes = "again", prefixes("198.18.20.8/32")
	e = reloaded(t, pins, append(without(authCookie, off), fresh, again))
	for _, name := range []string{"fresh", "again"} {
		if now := e.counts(name); slices.Max(now) != 0 {
			t.Errorf("service %s begins with %d", name, now)
		}
	}
	for key := range e.entries() {
		if key.Service != authFull {
			t.Errorf("service %d has the sources of one that has gone", key.Service)
		}
	}
	if n := len(e.entries()); n != 1 {
		t.Errorf("%d sources are listed, want that of the service that has stayed", n)
	}
	stranger := flagged(syn4(""), wire.ACK)
	e.want("an unknown ACK to what has stayed", stranger, "drop_bad_cookie")
	e.want("an unknown ACK to what is new", to(stranger, "198.18.20.7:80"), "pass_learning")
	e.want("a SYN to what is new", to(syn4(linuxOptions), "198.18.20.8:80"), "answer_syn")
}
