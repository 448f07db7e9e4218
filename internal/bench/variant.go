package bench

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/cilium/ebpf"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// variant is our edge with a cookie of a kind.
type variant struct {
	spec  func() (*ebpf.CollectionSpec, error)
	onNIC bool // answers leave by XDP_TX, not in the way of veth pairs
}

// The variants: as it is, with the kernel's raw helpers, and with the cookies of the
// papers' comparisons, which no agent knows.
var (
	asItIs    = variant{spec: loadOurs}
	asOnNIC   = variant{spec: loadOurs, onNIC: true}
	rawHelper = variant{spec: loadKernel}
	aesCookie = variant{spec: loadAESSpec}
	crcCookie = variant{spec: crcSpec}
)

// aesBenchKey is a benchmark's: it protects nothing.
var aesBenchKey = [16]byte([]byte("a benchmark's..."))

func loadAESSpec() (*ebpf.CollectionSpec, error) {
	spec, err := loadAes()
	if err != nil {
		return nil, err
	}
	box := aesBox()
	for name, value := range map[string]any{"aes_box": box, "aes_table": aesTable(box), "aes_key": aesExpand(box, aesBenchKey)} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	return spec, nil
}

// aesTimes multiplies by two in AES's field (FIPS 197, 4.2.1).
func aesTimes(b byte) byte { return b<<1 ^ b>>7*0x1b }

// aesBox is SubBytes (FIPS 197, 5.1.1): the inverse, and then an affine map.
// Powers of three, which generate the field, run up as those of its inverse run down.
func aesBox() (box [256]byte) {
	box[0] = 0x63
	p, q := byte(1), byte(1)
	for {
		p ^= aesTimes(p)
		q ^= q << 1
		q ^= q << 2
		q ^= q << 4
		q ^= q >> 7 * 0x09
		box[p] = q ^ bits.RotateLeft8(q, 1) ^ bits.RotateLeft8(q, 2) ^ bits.RotateLeft8(q, 3) ^ bits.RotateLeft8(q, 4) ^ 0x63
		if p == 1 {
			return box
		}
	}
}

// aesTable is SubBytes and MixColumns of a byte in each row, as a little-endian
// column.
func aesTable(box [256]byte) (all [4][256]uint32) {
	for i, s := range box {
		two := aesTimes(s)
		column := uint32(two) | uint32(s)<<8 | uint32(s)<<16 | uint32(two^s)<<24
		for row := range all {
			all[row][i] = bits.RotateLeft32(column, 8*row)
		}
	}
	return all
}

// aesExpand makes the round keys (FIPS 197, 5.2).
func aesExpand(box [256]byte, key [16]byte) (words [44]uint32) {
	for i := range 4 {
		words[i] = binary.LittleEndian.Uint32(key[4*i:])
	}
	round := byte(1)
	for i := 4; i < len(words); i++ {
		w := words[i-1]
		if i%4 == 0 {
			w = bits.RotateLeft32(w, -8)
			w = uint32(box[w&0xff]) | uint32(box[w>>8&0xff])<<8 | uint32(box[w>>16&0xff])<<16 | uint32(box[w>>24])<<24
			w ^= uint32(round)
			round = aesTimes(round)
		}
		words[i] = words[i-4] ^ w
	}
	return words
}

// newLabBench is an edge in this process for the lab's service: what the daemon
// would load, and variants beside it.
func newLabBench(l *lab.Lab, v variant) (*testBench, error) {
	ports, err := devicesOf(l.Edge)
	if err != nil {
		return nil, err
	}
	for i := range ports {
		ports[i].Veth = !v.onNIC
	}
	return newTestBench(cookie.SipHash, func(c *dataplane.EdgeConfig) {
		server := l.Server.IPv4
		c.Services[0].Prefixes = []netip.Prefix{netip.PrefixFrom(server, server.BitLen())}
		c.Outside, c.Inside, c.Forward = ports[:2], ports[2:], dataplane.Route
	})
}

// loadOne loads one program of a variant over the edge's maps.
func (b *testBench) loadOne(v variant, name string) (*ebpf.Collection, error) {
	spec, err := only(v.spec, name)
	if err != nil {
		return nil, err
	}
	return b.edge.LoadBeside(spec)
}

// loadOne loads one program of an object.
func loadOne(load func() (*ebpf.CollectionSpec, error), name string) (*ebpf.Collection, error) {
	spec, err := only(load, name)
	if err != nil {
		return nil, err
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	return collection, nil
}

// only reads an object and leaves one of its programs.
func only(load func() (*ebpf.CollectionSpec, error), name string) (*ebpf.CollectionSpec, error) {
	spec, err := load()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	prog := spec.Programs[name]
	if prog == nil {
		return nil, fmt.Errorf("embedded object has no program %s", name)
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{name: prog}
	return spec, nil
}
