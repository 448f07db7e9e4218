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
