package harness

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below those that systems give to outgoing connections:
// a port has to stay free from its choice until a broker binds it, and while a
// killed broker is away.
const (
	firstPort    = 15000
	lastPort     = 32000
	portAttempts = 200
)

// reserved are the ports of this test binary.
var reserved sync.Map

// reservePort answers a port of the loopback address that is free for TCP and
// UDP, and never the same one twice.
func reservePort(ctx context.Context) (int, error) {
	for range portAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if _, taken := reserved.LoadOrStore(port, true); !taken && isFree(ctx, port) {
			return port, nil
		}
	}
	return 0, errors.New("find a free port")
}

// reserveAddress is reservePort with the address before it.
func reserveAddress(ctx context.Context) (string, error) {
	port, err := reservePort(ctx)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

func isFree(ctx context.Context, port int) bool {
	var lc net.ListenConfig
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	stream, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = stream.Close() }()
	packets, err := lc.ListenPacket(ctx, "udp", address)
	if err != nil {
		return false
	}
	return packets.Close() == nil
}
