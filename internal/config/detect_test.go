package config

import (
	"testing"
	"time"

	"smartcookie/internal/policy"
)

func TestModesAndLimitsAreRead(t *testing.T) {
	for text, want := range map[string]policy.Service{
		"":                          {Mode: policy.Always, Detect: policy.DefaultDetect},
		"    mode: always\n":        {Mode: policy.Always, Detect: policy.DefaultDetect},
		"    mode: \"off\"\n":       {Mode: policy.Off, Detect: policy.DefaultDetect},
		"    mode: monitor\n":       {Mode: policy.Monitor, Detect: policy.DefaultDetect},
		"    mode: auto\n":          {Mode: policy.Adaptive, Detect: policy.DefaultDetect},
		"    detect: {syns: 500}\n": {Mode: policy.Always, Detect: policy.Detect{SYNs: 500, Unfinished: 50, HalfOpen: 2048, Calm: 30 * time.Second}},
		"    detect: {syns: 1, unfinished: 0, half_open: 0, calm: 1h}\n": {Mode: policy.Always, Detect: policy.Detect{SYNs: 1, Calm: time.Hour}},
	} {
		c, err := ReadServer(write(t, swap(t, goodServer, "    mode: \"off\"\n", text)))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if s := c.Services[1]; s.Mode != want.Mode || s.Detect != want.Detect {
			t.Errorf("%q: %s, %+v; want %s, %+v", text, s.Mode, s.Detect, want.Mode, want.Detect)
		}
	}
}

func TestLimitsOfTheCommandLine(t *testing.T) {
	for text, want := range map[string]policy.Detect{
		"":                      policy.DefaultDetect,
		"syns=500":              {SYNs: 500, Unfinished: 50, HalfOpen: 2048, Calm: 30 * time.Second},
		"calm=10s, half_open=0": {SYNs: 10_000, Unfinished: 50, Calm: 10 * time.Second},
	} {
		if got, err := ParseDetect(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"syns", "syns=0", "syns=many", "calm=1ms", "calm", "unfinished=101", "half_open=-1", "rate=1"} {
		if got, err := ParseDetect(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

// Without return traffic nothing shows that a handshake was finished: then SYNs
// alone are looked at, and who asks for more is told.
func TestLimitsThatNeedReturnTraffic(t *testing.T) {
	zero, some := 0, 10
	for _, row := range []struct {
		detect *detectFile
		passes bool
		part   string
	}{
		{nil, false, ""},
		{&detectFile{SYNs: &some}, false, ""},
		{&detectFile{Unfinished: &zero, HalfOpen: &zero}, false, ""},
		{&detectFile{Unfinished: &some}, false, "unfinished needs return traffic"},
		{&detectFile{HalfOpen: &some}, false, "half_open needs return traffic"},
		{&detectFile{Unfinished: &some, HalfOpen: &some}, true, ""},
	} {
		src, f := edgeSource(t, goodEdge)
		f.Services[0].Detect = row.detect
		services, _, err := src.services(f.Services)
		if err != nil {
			t.Fatal(err)
		}
		c := &Edge{Services: services, ReturnTraffic: row.passes}
		err = c.checkDetect(src, f.Services)
		if row.part != "" {
			wantFault(t, err, 6, row.part)
			continue
		}
		if d := c.Services[0].Detect; err != nil || !row.passes && (d.Unfinished != 0 || d.HalfOpen != 0) {
			t.Errorf("%+v: %v, %+v", row.detect, err, d)
		}
	}
}
