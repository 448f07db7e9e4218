package policy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func service(name, prefixes string, ports ...PortRange) Service {
	s := Service{Name: name, Ports: ports}
	for text := range strings.FieldsSeq(prefixes) {
		s.Prefixes = append(s.Prefixes, netip.MustParsePrefix(text))
	}
	return s
}

func one(port uint16) PortRange { return PortRange{port, port} }

func compile(t *testing.T, services ...Service) *Table {
	t.Helper()
	table, err := Compile(services)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// find looks a service up as the data plane does: the longest prefix decides.
func (t *Table) find(address netip.Addr, port uint16) uint16 {
	for bits := address.BitLen(); bits >= 0; bits-- {
		prefix, err := address.Prefix(bits)
		if err != nil {
			continue
		}
		set, ok := t.Prefixes[prefix]
		if !ok {
			continue
		}
		for _, r := range t.Ranges[set.First : set.First+set.Count] {
			if r.Low <= port && port <= r.High {
				return r.Service
			}
		}
		return 0
	}
	return 0
}

func TestLongerPrefixHasThePortsOfShorterOnesToo(t *testing.T) {
	table := compile(t,
		service("net", "192.0.2.0/24 2001:db8::/32", one(443)),
		service("host", "192.0.2.7/32 2001:db8::7/128", one(22), PortRange{8000, 8099}))
	for _, want := range []struct {
		address string
		port    uint16
		service uint16
	}{
		{"192.0.2.1", 443, 1}, {"192.0.2.7", 443, 1}, {"192.0.2.7", 22, 2}, {"192.0.2.7", 8099, 2},
		{"192.0.2.1", 22, 0}, {"192.0.2.7", 8100, 0}, {"192.0.2.7", 7999, 0}, {"192.0.3.1", 443, 0},
		{"2001:db8::1", 443, 1}, {"2001:db8::7", 443, 1}, {"2001:db8::7", 22, 2}, {"2001:db9::1", 443, 0},
	} {
		if got := table.find(netip.MustParseAddr(want.address), want.port); got != want.service {
			t.Errorf("%s port %d: service %d, want %d", want.address, want.port, got, want.service)
		}
	}
}

func TestOverlappingServicesAreNamedWithAddressAndPort(t *testing.T) {
	for name, test := range map[string]struct {
		services []Service
		want     string
	}{
		"same": {
			[]Service{service("a", "192.0.2.1/32", one(80)), service("b", "192.0.2.1/32", one(80))},
			`service "b" overlaps service "a" at 192.0.2.1/32 port 80`,
		},
		"inner prefix": {
			[]Service{service("a", "192.0.2.7/32", PortRange{1, 99}), service("b", "192.0.2.0/24", PortRange{90, 100})},
			`service "b" overlaps service "a" at 192.0.2.7/32 port 90`,
		},
		"later of three": {
			[]Service{service("a", "192.0.2.0/24", one(1)), service("b", "192.0.2.0/24", one(2)), service("c", "::/0 192.0.2.9/32", PortRange{2, 3})},
			`service "c" overlaps service "b" at 192.0.2.9/32 port 2`,
		},
		"itself": {
			[]Service{service("a", "192.0.2.1/32", one(80), PortRange{70, 90})},
			`service "a" overlaps service "a" at 192.0.2.1/32 port 80`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(test.services)
			var overlap *OverlapError
			if !errors.As(err, &overlap) || err.Error() != test.want {
				t.Fatalf("got %v, want %s", err, test.want)
			}
			if last := test.services[overlap.Second].Name; !strings.HasPrefix(test.want, fmt.Sprintf("service %q", last)) {
				t.Errorf("blames %q", last)
			}
		})
	}
}

func TestSamePortAtDisjointPrefixesDoesNotOverlap(t *testing.T) {
	table := compile(t, service("a", "192.0.2.0/25", one(80)), service("b", "192.0.2.128/25", one(80)), service("c", "2001:db8::/32", one(80)))
	for address, want := range map[string]uint16{"192.0.2.127": 1, "192.0.2.128": 2, "2001:db8::1": 3} {
		if got := table.find(netip.MustParseAddr(address), 80); got != want {
			t.Errorf("%s: service %d, want %d", address, got, want)
		}
	}
}

func TestRangesAscendAndAreDisjointAtEveryPrefix(t *testing.T) {
	table := compile(t,
		service("a", "192.0.2.0/24", one(443), one(80), PortRange{9000, 9999}),
		service("b", "192.0.2.1/32", one(100), one(1)))
	for prefix, set := range table.Prefixes {
		ranges := table.Ranges[set.First : set.First+set.Count]
		for i := 1; i < len(ranges); i++ {
			if ranges[i].Low <= ranges[i-1].High {
				t.Errorf("%s: %v", prefix, ranges)
			}
		}
	}
}

func TestTableAgreesWithTheListOfServices(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		services := randomServices(random)
		table, err := Compile(services)
		if err != nil {
			continue // they overlap
		}
		for range 100 {
			address, port := randomAddress(random), uint16(random.UintN(64))
			index, ok := Protects(services, address, port)
			want := uint16(0)
			if ok {
				want = uint16(index + 1)
			}
			if got := table.find(address, port); got != want {
				t.Fatalf("%s port %d: table says %d, want %d: %+v", address, port, got, want, services)
			}
		}
	}
}

// randomAddress is one of few, so that prefixes meet.
func randomAddress(random *rand.Rand) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(random.UintN(256))})
}

func randomServices(random *rand.Rand) []Service {
	services := make([]Service, 1+random.IntN(4))
	for i := range services {
		services[i].Name = fmt.Sprint(i)
		for range 1 + random.IntN(3) {
			prefix, _ := randomAddress(random).Prefix(24 + random.IntN(9))
			low := uint16(1 + random.UintN(60))
			services[i].Prefixes = append(services[i].Prefixes, prefix)
			services[i].Ports = append(services[i].Ports, PortRange{low, low + uint16(random.UintN(3))})
		}
	}
	return services
}

func TestTooManyServicesPrefixesOrRangesAreRefused(t *testing.T) {
	many := make([]Service, MaxServices+1)
	if _, err := Compile(many); err == nil || !strings.Contains(err.Error(), "at most 1024") {
		t.Errorf("%d services: %v", len(many), err)
	}
	wide := service("wide", "")
	for i := range 300 {
		wide.Prefixes = append(wide.Prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32))
		wide.Ports = append(wide.Ports, one(uint16(1+i)))
	}
	if _, err := Compile([]Service{wide}); err == nil || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("%d ranges: %v", 300*300, err)
	}
}
