package bench

import "smartcookie/internal/evaluation"

var linuxNotes = []string{
	"One CPU is the host: it receives, answers, and runs the server. The client runs there too, and another CPU is the generator's. Packets of both come by the same port and share its queue of 256; a client on the host's own CPU sends when that does not receive, and loses less than one elsewhere would.",
	"Each setting has its turn on the same host with a new listener. The kernel's memory of earlier clients is off (tcp_no_metrics_save=1): it lets those through a full queue, and no cookies would look harmless.",
	"Without cookies the queue of half-open connections is full when a flood begins to be measured: a slow one would need a minute for that. It holds 768 then (three quarters of tcp_max_syn_backlog=1024), each for about a minute.",
	"SYNs answered are SYN-ACKs that came back, without those that the kernel sent again.",
	"A request counts as served within its time, half a second or less in a quick run, 1.5 s otherwise; a SYN that was lost once is sent again after a second.",
	"The profile is of the host's CPU alone, by a timer of the kernel 997 times a second. Where interrupts are off the timer is late, and tells the place where they are on again.",
	"The paper's SHA1 is Linux 4.19 or older; this kernel hashes cookies by SipHash.",
}

func (x *linuxAlone) panels(t evaluation.Taken) []evaluation.Panel {
	all := []evaluation.Panel{x.served(t), x.processed(t)}
	for i, p := range profiles {
		all = append(all, profilePanel(t, p, []string{"e6-time-idle", "e6-time-off", "e6-time-cookies"}[i]))
	}
	return all
}

// over draws a figure of each setting over the flood.
func (x *linuxAlone) over(t evaluation.Taken, figure string, papers map[cookieSetting]*evaluation.Paper) (all []evaluation.Series) {
	for _, c := range cookieSettings {
		series := evaluation.Series{Subject: c.String(), Paper: papers[c]}
		for _, p := range x.pressures {
			at := p.value()
			if p == fullFlood { // where it stands is what was offered
				point, ok := evaluation.PointOf(0, t.Rounds(cookiesNeeded.String(), p.String(), "offered_per_s"))
				if !ok {
					continue
				}
				at = point.Median
			}
			if point, ok := evaluation.PointOf(at, t.Rounds(c.String(), p.String(), figure)); ok {
				series.Points = append(series.Points, point)
			}
		}
		if len(series.Points) > 0 {
			all = append(all, series)
		}
	}
	return all
}

const europ4 = "EuroP4 2020, appendix B"

func (x *linuxAlone) served(t evaluation.Taken) evaluation.Panel {
	const differs = "Linux 5.9 and 4.19, a real card, an attacker elsewhere"
	return evaluation.Panel{
		ID: "e6-served", Title: "Requests served", Kind: evaluation.Lines,
		X: evaluation.Axis{Label: "SYN/s offered", Log: true}, Y: evaluation.Axis{Label: "% of 100 requests a second"}, Better: evaluation.Higher,
		Series: x.over(t, requestsServed, map[cookieSetting]*evaluation.Paper{
			cookiesOff:    {Value: "none", Where: europ4 + ", figure 7b", Differs: differs},
			cookiesNeeded: {Value: "all up to 0.4 M SYN/s, then towards none", Where: europ4 + ", figure 7b", Differs: differs},
		}),
		Note: "The paper: none without cookies; with them all up to 0.4 million SYN/s, and next to none beyond.",
	}
}

func (x *linuxAlone) processed(t evaluation.Taken) evaluation.Panel {
	const differs = "Linux 5.9 and 4.19, a real card; its queue may have had another length"
	return evaluation.Panel{
		ID: "e6-processed", Title: "SYNs answered", Kind: evaluation.Lines,
		X: evaluation.Axis{Label: "SYN/s offered", Log: true}, Y: evaluation.Axis{Label: "SYN/s answered"}, Better: evaluation.Higher,
		Series: x.over(t, answeredPerS, map[cookieSetting]*evaluation.Paper{
			cookiesOff:    {Value: "up to 250 SYN/s", Where: europ4, Differs: differs},
			cookiesNeeded: {Value: "up to 0.4 M SYN/s", Where: europ4, Differs: differs},
		}),
		Note: "The paper: up to 250 SYN/s without cookies, since the queue is full and not the CPU; up to 0.4 million with them.",
	}
}

// profilePanel has a bar for each part.
func profilePanel(t evaluation.Taken, p profiled, id string) evaluation.Panel {
	panel := evaluation.Panel{
		ID: id, Title: "Where the time goes: " + p.String(), Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "part of the kernel"}, Y: evaluation.Axis{Label: "% of the CPU's time"},
		Note: "By the innermost function that is known to belong to a part; the rest has no such function.",
	}
	if p.at == spare {
		panel.Note += " The CPU is idle most of the time, and still nobody is served: the queue is full."
	}
	for _, name := range partNames {
		var paper *evaluation.Paper
		if name == partCookie && p.setting != cookiesOff {
			paper = &evaluation.Paper{Value: "2.5% with SipHash, up to 15% with SHA1", Where: europ4 + ", figure 8", Differs: "the hash alone, on a real card"}
		}
		panel.Series = append(panel.Series, evaluation.Bar(name, false, t.Rounds(whereTimeGoes, p.String(), name+" percent"), paper)...)
	}
	return panel
}
