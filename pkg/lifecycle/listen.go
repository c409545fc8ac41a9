package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Listen opens a TCP listener. Its errors say which variable to change.
func Listen(ctx context.Context, addr, variable string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: another process uses this port, change %s: %w", addr, variable, err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: no permission for this port, change %s: %w", addr, variable, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen on %s: not an address of this machine, change %s: %w", addr, variable, err)
	}
	return nil, fmt.Errorf("listen on %s (%s): %w", addr, variable, err)
}
