package hints

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/logging"
)

const (
	keyBytes = 32 // AES-256
	// streamTimeout bounds a state exchange with one peer.
	streamTimeout = 2 * time.Second
	// inboundQueue is how many messages the library keeps while it is busy.
	inboundQueue = 4096
	// suspicionSlack is how much longer a suspect may take to answer while nobody
	// else has confirmed the suspicion.
	suspicionSlack = 2
	maxIDBytes     = 100
)

// library builds the configuration of memberlist.
func (p *Pool) library(ctx context.Context, label string) (*memberlist.Config, error) {
	bind, err := p.bindAddr(ctx)
	if err != nil {
		return nil, err
	}
	c := memberlist.DefaultLANConfig()
	c.Name, c.Label = p.name, label
	c.BindAddr, c.BindPort = bind.String(), p.cfg.Port
	c.AdvertiseAddr, c.AdvertisePort = p.advertise(ctx, bind)
	c.TCPTimeout = streamTimeout
	c.ProbeInterval, c.ProbeTimeout = p.cfg.Heartbeat, p.cfg.Heartbeat/2
	// A probe finds the silence, then the suspicion lasts for the rest.
	c.SuspicionMult = max(int((p.cfg.DeadThreshold-p.cfg.Heartbeat)/p.cfg.Heartbeat), 1)
	c.SuspicionMaxTimeoutMult = suspicionSlack
	c.GossipInterval = min(c.GossipInterval, p.cfg.Heartbeat)
	c.PushPullInterval = 15 * c.ProbeInterval
	c.UDPBufferSize = maxDatagram
	c.HandoffQueueDepth = inboundQueue
	c.EnableCompression = false // the payloads are small, and the processor is what is short
	c.Delegate, c.Events = delegate{p}, events{p}
	c.Logger = log.New(&libraryLog{log: p.deps.Log, rejected: &p.counts.datagrams[dirRejected], warn: rate.Sometimes{First: 1, Interval: rejectLogInterval}}, "", 0)
	if secret := p.cfg.Secret.Reveal(); secret != "" {
		if c.SecretKey, err = hkdf.Key(sha256.New, []byte(secret), nil, "queen hint pool v1", keyBytes); err != nil {
			return nil, fmt.Errorf("derive the key of the pool: %w", err)
		}
	}
	if p.wrap != nil {
		err = p.wrapTransport(c)
	}
	return c, err
}

// wrapTransport lets tests stand between the pool and the network.
func (p *Pool) wrapTransport(c *memberlist.Config) error {
	nt, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
		BindAddrs: []string{c.BindAddr}, BindPort: c.BindPort, Logger: c.Logger,
	})
	if err != nil {
		return err
	}
	c.Transport = p.wrap(nt)
	return nil
}

func (p *Pool) bindAddr(ctx context.Context) (net.IP, error) {
	ip, err := lookup(ctx, p.cfg.BindAddr)
	if err != nil {
		return nil, fmt.Errorf("resolve QUEEN_MESH_BIND_ADDR: %w", err)
	}
	return ip, nil
}

// advertise chooses the address that peers are told. Nothing of it may keep the
// process from starting: a peer that cannot reach us costs hints only. An empty
// one is the bound address.
func (p *Pool) advertise(ctx context.Context, bind net.IP) (string, int) {
	port := p.cfg.Port
	if p.cfg.AdvertiseHost != "" {
		a := parsePeer(p.cfg.AdvertiseHost, port)
		ip, err := lookup(ctx, a.host)
		if err == nil {
			return ip.String(), a.port
		}
		p.deps.Log.WarnContext(ctx, "address for peers cannot be resolved",
			slog.String(logging.KeyVariable, "QUEEN_MESH_ADVERTISE_HOST"), logging.Err(err))
	}
	if !bind.IsUnspecified() {
		return bind.String(), port
	}
	return hostAddr(ctx).String(), port
}

// nodeMeta travels with the membership.
type nodeMeta struct {
	Role Role   `json:"role"`
	ID   string `json:"id"`
}

// delegate receives messages and describes this member.
type delegate struct{ pool *Pool }

func (d delegate) NodeMeta(limit int) []byte {
	meta, err := json.Marshal(nodeMeta{Role: d.pool.deps.Role, ID: d.pool.id})
	if err != nil || len(meta) > limit {
		return nil
	}
	return meta
}

// NotifyMsg takes a payload; the buffer is the library's.
func (d delegate) NotifyMsg(payload []byte) { d.pool.accept(payload) }

// Nothing is spread by gossip, and there is no state to exchange.

func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

// events follows the membership. The library holds its lock meanwhile.
type events struct{ pool *Pool }

func (e events) NotifyJoin(n *memberlist.Node)   { e.pool.joined(n) }
func (e events) NotifyUpdate(n *memberlist.Node) { e.pool.joined(n) }
func (e events) NotifyLeave(n *memberlist.Node)  { e.pool.left(n) }

func addressOf(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}

// rejectLogInterval thins out the log of traffic that is none of this pool's.
const rejectLogInterval = 30 * time.Second

// libraryLog takes the lines of memberlist. It has no other way to tell that
// somebody with another secret or of another installation is calling.
type libraryLog struct {
	log      *slog.Logger
	rejected interface{ Add(int64) int64 }
	warn     rate.Sometimes
}

// Write takes one line.
func (l *libraryLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	ctx := context.Background()
	if rejects(text) {
		l.rejected.Add(1)
		l.warn.Do(func() {
			l.log.WarnContext(ctx, "traffic that is not of this pool was refused", slog.String(logging.KeyReason, text))
		})
		return len(line), nil
	}
	l.log.DebugContext(ctx, "memberlist", slog.String(logging.KeyLine, text))
	return len(line), nil
}

func rejects(line string) bool {
	// A stream that ended before its first byte, such as a call given up.
	if strings.Contains(line, `stream with unacceptable label ""`) {
		return false
	}
	for _, sign := range []string{"unacceptable label", "ecrypt packet failed", "failed to receive:", "label header", "not supported"} {
		if strings.Contains(line, sign) {
			return true
		}
	}
	return false
}
