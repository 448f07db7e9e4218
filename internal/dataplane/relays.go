package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"smartcookie/internal/control"
)

// ErrRelaysClosed says that no more packets come.
var ErrRelaysClosed = errors.New("relays are closed")

// Relays gives out the packets that an edge's programs want carried to agents.
type Relays struct {
	reader *ringbuf.Reader
	record ringbuf.Record
}

// OpenRelays begins to take them; before that, and when it is too slow, the
// programs drop them (drop_busy).
func (e *Edge) OpenRelays() (*Relays, error) {
	reader, err := ringbuf.NewReader(e.objects.Relays)
	if err != nil {
		return nil, fmt.Errorf("read map relays: %w", err)
	}
	return &Relays{reader: reader}, nil
}

// Read waits for the next packet, which is the caller's until it calls again.
func (r *Relays) Read() (control.Kind, []byte, error) {
	err := r.reader.ReadInto(&r.record)
	if errors.Is(err, os.ErrClosed) {
		return 0, nil, ErrRelaysClosed
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read map relays: %w", err)
	}
	b := r.record.RawSample
	const header = int(unsafe.Offsetof(edgeRelayed{}.Packet))
	if len(b) < header || int(binary.NativeEndian.Uint16(b)) > len(b)-header {
		return 0, nil, fmt.Errorf("read map relays: a record of %d bytes", len(b))
	}
	packet := b[header:][:binary.NativeEndian.Uint16(b)]
	return control.Kind(b[unsafe.Offsetof(edgeRelayed{}.Kind)]), packet, nil
}

// Close ends a Read.
func (r *Relays) Close() error { return r.reader.Close() }
