package config

import (
	"time"

	"smartcookie/internal/policy"
)

// Defaults and bounds of strategies that whitelist addresses.
const (
	DefaultWhitelist = 1 << 18
	MinWhitelist     = 1 << 10
	MaxWhitelist     = 1 << 24

	defaultAuthTime                = 10 * time.Minute
	minAuthTime, maxAuthTime       = time.Second, 24 * time.Hour
	defaultAuthSYNs, maxAuthSYNs   = 100, 1_000_000
	defaultUnfinished              = 200
	defaultPrefix4, defaultPrefix6 = 32, 64
	minPrefix4, minPrefix6         = 16, 32
)

// AuthKeys are the keys of a service whose strategy whitelists addresses.
type AuthKeys struct {
	Time       string `yaml:"auth_time"`
	SYNs       *int   `yaml:"auth_syns"`
	Unfinished *int   `yaml:"auth_unfinished"`
	Prefix4    *int   `yaml:"auth_prefix4"`
	Prefix6    *int   `yaml:"auth_prefix6"`
}

func (s *source) serviceAuth(path string, f *serviceFile, out *policy.Service) (err error) {
	if !out.Strategy.Whitelists() {
		return s.noAuth(path, &f.AuthKeys)
	}
	if out.Admission == policy.OnConfirm {
		return s.fail(path+".admission", "on-confirm is of the strategy split: the server's agent has no part in %s", f.Strategy)
	}
	if out.Probes > 0 {
		return s.fail(path+".probes", "probes are of the strategy split: the server's agent has no part in %s", f.Strategy)
	}
	a := &out.Auth
	if a.Time, err = s.duration(path+".auth_time", f.AuthKeys.Time, defaultAuthTime, minAuthTime, maxAuthTime); err != nil {
		return err
	}
	if a.Time%time.Second != 0 {
		return s.fail(path+".auth_time", "%s is no whole number of seconds", a.Time)
	}
	var prefix4, prefix6 int
	for _, number := range []struct {
		key                  string
		value                *int
		otherwise, low, high int
		out                  *int
	}{
		{"auth_syns", f.SYNs, defaultAuthSYNs, 1, maxAuthSYNs, &a.SYNs},
		{"auth_unfinished", f.Unfinished, defaultUnfinished, 1, maxAuthSYNs, &a.Unfinished},
		{"auth_prefix4", f.Prefix4, defaultPrefix4, minPrefix4, defaultPrefix4, &prefix4},
		{"auth_prefix6", f.Prefix6, defaultPrefix6, minPrefix6, 2 * defaultPrefix6, &prefix6},
	} {
		if *number.out, err = s.bounded(path+"."+number.key, number.value, number.otherwise, number.low, number.high); err != nil {
			return err
		}
	}
	a.Prefix4, a.Prefix6 = uint8(prefix4), uint8(prefix6)
	return nil
}

// noAuth refuses keys that would say nothing.
func (s *source) noAuth(path string, f *AuthKeys) error {
	for _, k := range []struct {
		name  string
		given bool
	}{
		{"auth_time", f.Time != ""}, {"auth_syns", f.SYNs != nil}, {"auth_unfinished", f.Unfinished != nil},
		{"auth_prefix4", f.Prefix4 != nil}, {"auth_prefix6", f.Prefix6 != nil},
	} {
		if k.given {
			return s.fail(path+"."+k.name, "%s is of the strategies auth-cookie, auth-full and auth-rst", k.name)
		}
	}
	return nil
}

func (c *Edge) readWhitelist(src *source, f *edgeFile) (err error) {
	c.Whitelist, err = src.bounded("$.whitelist", f.Whitelist, DefaultWhitelist, MinWhitelist, MaxWhitelist)
	return err
}
