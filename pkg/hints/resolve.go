package hints

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// lookupTimeout bounds the resolution of one name.
const lookupTimeout = 2 * time.Second

// lookupAll resolves a host to its addresses.
func lookupAll(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i] = list[i].Unmap()
	}
	return list, nil
}

// lookup resolves a host to one address, IPv4 before IPv6.
func lookup(ctx context.Context, host string) (net.IP, error) {
	list, err := lookupAll(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		if a.Is4() {
			return a.AsSlice(), nil
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return list[0].AsSlice(), nil
}

// hostAddr finds an address of this machine that others can reach: that of its
// name, else of an interface, else the loopback.
func hostAddr(ctx context.Context) net.IP {
	if name, err := os.Hostname(); err == nil {
		if ip, err := lookup(ctx, name); err == nil && !ip.IsLoopback() && !ip.IsUnspecified() {
			return ip
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		addrs = nil
	}
	best := net.IPv4(127, 0, 0, 1)
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() {
			continue
		}
		if n.IP.To4() != nil {
			return n.IP
		}
		if best.IsLoopback() {
			best = n.IP
		}
	}
	return best
}
