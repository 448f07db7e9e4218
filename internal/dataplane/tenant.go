package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"smartcookie/internal/control"
)

// heldPackets is how many packets can wait for SYN-ACKs of tenants, in 2.4 kB
// each. They wait for as long as the tenant needs to answer a SYN.
const heldPackets = 4096

// attachTenants puts the programs at the tenants' devices, where out is to the
// server: first what translates back.
func (s *Server) attachTenants(pins *Pins) error {
	for _, i := range s.config.Tenants {
		if err := attachTC(pins, s.links, i, s.objects.TenantIngress, ebpf.AttachTCXIngress); err != nil {
			return err
		}
	}
	for _, i := range s.config.Tenants {
		if err := attachTC(pins, s.links, i, s.objects.TenantEgress, ebpf.AttachTCXEgress); err != nil {
			return err
		}
	}
	return nil
}

// walkTenants hands out the tenants' connections, whose sockets are out of sight.
func (s *Server) walkTenants(each func(control.Flow)) error {
	now, err := coarseNow()
	if err != nil || len(s.config.Tenants) == 0 {
		return err
	}
	cursor, keys, values := ebpf.MapBatchCursor{}, make([]serverEndpoints, flowsBatch), make([]serverTranslation, flowsBatch)
	for {
		n, err := s.objects.Flows.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			if values[i].tenantLives(now) {
				each(tenantFlow(&keys[i]))
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil // the end
		}
		if err != nil {
			return fmt.Errorf("read tenants' connections: %w", err)
		}
	}
}

// tenantLives: entries of this host's own sockets expire only once those have
// ended.
func (t *serverTranslation) tenantLives(now uint64) bool {
	return t.ExpiresNs != 0 && !t.expired(now) &&
		t.State != uint8(serverTranslationStateTRANSLATION_CLOSED)
}

func tenantFlow(e *serverEndpoints) control.Flow {
	return tableFlow(&serverConnection{
		ClientBe: e.ClientBe, ServerBe: e.ServerBe, ClientPortBe: e.ClientPortBe, ServerPortBe: e.ServerPortBe,
	})
}
