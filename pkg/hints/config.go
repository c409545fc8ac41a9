package hints

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/logging"
)

// Config says where the pool is. It is read alike by every service.
type Config struct {
	// Enabled switches the pool off whatever else is set. Without peers there is
	// none either.
	Enabled bool `envconfig:"QUEEN_SYNC_ENABLED" default:"true"`
	// Peers are where other members may be found: host or host:port, comma
	// separated. A name may stand for many addresses, this process among them.
	Peers string `envconfig:"QUEEN_MESH_PEERS" alias:"QUEEN_UDP_PEERS"`
	// Port is that of this process, for TCP and UDP, and of peers that name none.
	Port     int    `envconfig:"QUEEN_MESH_PORT" alias:"QUEEN_UDP_NOTIFY_PORT" default:"6633"`
	BindAddr string `envconfig:"QUEEN_MESH_BIND_ADDR" alias:"QUEEN_BIND_ADDR" default:"0.0.0.0"`
	// AdvertiseHost (host or host:port) is where peers reach this process, when that
	// is not the address it is bound to or that of the host's name.
	AdvertiseHost string `envconfig:"QUEEN_MESH_ADVERTISE_HOST"`
	// Secret encrypts the traffic and must be the same everywhere; without one the
	// port has to be closed to everybody else.
	Secret config.Secret `envconfig:"QUEEN_SYNC_SECRET"`
	// Heartbeat is how often a peer is probed, and DeadThreshold about how long one
	// may be silent before it is taken for dead.
	Heartbeat     time.Duration `envconfig:"QUEEN_SYNC_HEARTBEAT_MS" default:"1000"`
	DeadThreshold time.Duration `envconfig:"QUEEN_SYNC_DEAD_THRESHOLD_MS" default:"5000"`
}

// On says whether there is a pool.
func (c Config) On() bool { return c.Enabled && len(c.peers()) > 0 }

// WarnOpen says so when the pool takes hints from everybody.
func (c Config) WarnOpen(ctx context.Context, log *slog.Logger) {
	if c.On() && c.Secret == "" {
		log.WarnContext(ctx, "the hint pool is open to everybody who reaches its port", slog.String(logging.KeyVariable, "QUEEN_SYNC_SECRET"))
	}
}

// Validate checks the bounds.
func (c Config) Validate() error {
	problems := []error{
		config.Between("QUEEN_MESH_PORT", c.Port, 1, maxPort),
		config.MillisBetween("QUEEN_SYNC_HEARTBEAT_MS", c.Heartbeat, 10*time.Millisecond, time.Minute),
		config.MillisBetween("QUEEN_SYNC_DEAD_THRESHOLD_MS", c.DeadThreshold, 10*time.Millisecond, time.Hour),
	}
	if c.DeadThreshold < 2*c.Heartbeat {
		problems = append(problems, &config.ValueError{
			Name: "QUEEN_SYNC_DEAD_THRESHOLD_MS", Value: strconv.FormatInt(c.DeadThreshold.Milliseconds(), 10),
			Allowed: "at least twice QUEEN_SYNC_HEARTBEAT_MS (" + strconv.FormatInt(c.Heartbeat.Milliseconds(), 10) + ")",
		})
	}
	for _, p := range c.peers() {
		if !isHost(p.host) {
			problems = append(problems, &config.ValueError{
				Name: "QUEEN_MESH_PEERS", Value: p.host, Allowed: "a comma separated list of host or host:port",
			})
		}
	}
	if c.On() && !isHost(c.BindAddr) { // it may be that of the clients' listener, which has a check of its own
		problems = append(problems, &config.ValueError{
			Name: "QUEEN_MESH_BIND_ADDR", Value: c.BindAddr, Allowed: "a host name or an IP address without a port (the port is QUEEN_MESH_PORT)",
		})
	}
	if a := c.AdvertiseHost; a != "" && !isHost(parsePeer(a, c.Port).host) {
		problems = append(problems, &config.ValueError{Name: "QUEEN_MESH_ADVERTISE_HOST", Value: a, Allowed: "host or host:port"})
	}
	return errors.Join(problems...)
}

const maxPort = 65535

// isHost accepts a name, an IPv4 address or a bare IPv6 one.
func isHost(s string) bool {
	if strings.Contains(s, ":") {
		return net.ParseIP(strings.Split(s, "%")[0]) != nil
	}
	return s != "" && !strings.ContainsAny(s, "/[]@\\\"' \t\r\n\x00")
}

// peer is one entry of the list of peers.
type peer struct {
	host string
	port int
}

func (c Config) peers() []peer {
	var list []peer
	for entry := range strings.SplitSeq(c.Peers, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			list = append(list, parsePeer(entry, c.Port))
		}
	}
	return list
}

// parsePeer is lenient, as the lists that are in use want it: a scheme and a path
// are cut off, and a port that is none gives way to the pool's.
func parsePeer(entry string, port int) peer {
	if _, rest, ok := strings.Cut(entry, "://"); ok {
		entry = rest
	}
	entry, _, _ = strings.Cut(entry, "/")
	entry = strings.TrimSpace(entry)
	if net.ParseIP(strings.Split(entry, "%")[0]) != nil { // a bare IPv6 address has colons of its own
		return peer{entry, port}
	}
	i := strings.LastIndexByte(entry, ':')
	if i < 0 || strings.HasSuffix(entry, "]") {
		return peer{strings.Trim(entry, "[]"), port}
	}
	if n, err := strconv.Atoi(strings.TrimSpace(entry[i+1:])); err == nil && n >= 1 && n <= maxPort {
		port = n
	}
	return peer{strings.Trim(strings.TrimSpace(entry[:i]), "[]"), port}
}
