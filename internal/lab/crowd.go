package lab

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
)

// visit is one client's request.
type visit struct {
	from  netip.Addr // not valid: whatever the kernel chooses
	first bool       // of this client
	page  string     // behind the URL
}

// visitKey finds a request's visit in its context.
type visitKey struct{}

// visit says which client makes the n-th request.
func (o *LoadOptions) visit(n int) visit {
	if !o.Crowd.IsValid() {
		return visit{first: n == 0}
	}
	batch, place := n/(o.Batch*o.Visits), n%(o.Batch*o.Visits)
	client := o.Skip + batch*o.Batch + place%o.Batch
	return visit{from: memberOf(o.Crowd, uint16(client+1)), first: place < o.Batch}
}

// memberOf is a client of the crowd. Each has an IPv6 network of its own, since
// that is what a defence takes for one client.
func memberOf(crowd netip.Prefix, number uint16) netip.Addr {
	b := crowd.Addr().AsSlice()
	at := 6
	if len(b) == net.IPv4len {
		at = 2
	} else {
		b[15] = 1
	}
	binary.BigEndian.PutUint16(b[at:], number)
	address, _ := netip.AddrFromSlice(b) // of one of the two lengths
	return address
}

// dialAs connects from the address of the context's visit.
func dialAs(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	if v, ok := ctx.Value(visitKey{}).(visit); ok && v.from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(v.from, 0))
	}
	return dialer.DialContext(ctx, network, address)
}
