package bench

import (
	"testing"

	"smartcookie/internal/evaluation"
)

func TestKernelCounterIsFoundByName(t *testing.T) {
	const text = "TcpExt: SyncookiesSent TCPSynRetrans Last\nTcpExt: 5 17 9\nIpExt: TCPSynRetrans\nIpExt: 3\n"
	for _, test := range []struct {
		group, name string
		want        uint64
		ok          bool
	}{
		{"TcpExt:", "TCPSynRetrans", 17, true}, {"TcpExt:", "Last", 9, true}, {"IpExt:", "TCPSynRetrans", 3, true},
		{"TcpExt:", "TCPSyn", 0, false}, {"TcpExt:", "TcpExt:", 0, false}, {"Ip:", "Last", 0, false},
	} {
		got, err := kernelCounter([]byte(text), test.group, test.name)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("%s %s: %d, %v; want %d", test.group, test.name, got, err, test.want)
		}
	}
}

func TestAnswersThatAreSentAgainAreNone(t *testing.T) {
	var before kernelCounts
	for _, test := range []struct{ answered, repeated, cookies, want uint64 }{
		{1000, 0, 0, 1000}, {1000, 768, 0, 232}, {300, 768, 0, 0}, {300, 768, 700, 700},
	} {
		after := kernelCounts{counts{answered: test.answered}, test.repeated, test.cookies}
		if got := after.fresh(before); got != float64(test.want) {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestSettingsAreDrawnOverWhatWasOffered(t *testing.T) {
	for _, effort := range bothEfforts {
		x := newLinuxAlone(effort)
		taken := everyCell(x.cells(), func(id evaluation.CellID) evaluation.Figures {
			if id.Subject == whereTimeGoes {
				return shareOut([]stack{{0, nil}}, nil, 1)
			}
			f := evaluation.Figures{requestsServed: 100, answeredPerS: 300_000, "offered_per_s": 7e6}
			if id.Subject == cookiesOff.String() {
				f[requestsServed], f[answeredPerS] = 0, 20
			}
			return f
		})
		panels := x.panels(taken)
		if len(panels) != 2+len(profiles) {
			t.Errorf("%s: %d panels", effort, len(panels))
		}
		off := seriesOf(t, panelOf(t, panels, "e6-served"), cookiesOff.String())
		if len(off.Points) != len(x.pressures) || off.Points[0].Median != 0 || off.Points[0].X != float64(x.pressures[0]) {
			t.Errorf("%s: without cookies %+v", effort, off.Points)
		}
		if last := off.Points[len(off.Points)-1]; x.pressures[len(x.pressures)-1] == fullFlood && last.X != 7e6 {
			t.Errorf("%s: the largest flood stands at %v, and 7 M were offered", effort, last.X)
		}
		if got := seriesOf(t, panelOf(t, panels, "e6-processed"), cookiesAlways.String()).Points[0].Median; got != 300_000 {
			t.Errorf("%s: answered %v", effort, got)
		}
		for _, name := range partNames {
			if points := seriesOf(t, panelOf(t, panels, "e6-time-cookies"), name).Points; len(points) != 1 {
				t.Errorf("%s: %s has %v", effort, name, points)
			}
		}
	}
}

func TestKernelAloneIsFlooded(t *testing.T) {
	needRoot(t)
	x := newLinuxAlone(evaluation.Quick)
	defer func() {
		if err := x.stations.close(); err != nil {
			t.Error(err)
		}
	}()
	// A full queue serves nobody, however slow the machine is.
	f, err := x.serve(t.Context(), cookiesOff, fullFlood)
	if err != nil || f[requestsServed] != 0 {
		t.Errorf("without cookies: %v, %v", f, err)
	}
	f, err = x.serve(t.Context(), cookiesAlways, fullFlood)
	if err != nil || f[answeredPerS] <= 0 {
		t.Errorf("with cookies: %v, %v", f, err)
	}
	f, err = x.profile(t.Context(), profiles[2])
	if err != nil || f[partCookie+" percent"] <= 0 || f[partListener+" percent"] <= 0 || f[partRest+" percent"] > 50 {
		t.Errorf("profile: %v, %v", f, err)
	}
}
