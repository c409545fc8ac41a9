package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/announce"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
)

// transport is the name that readers of the statistics know.
const transport = "tcp-mesh"

// Deps are what a Mesh works with.
type Deps struct {
	ServerID string
	// Installation identifies the database.
	Installation func(ctx context.Context) (uuid.UUID, error)
	// Local is what hints of others set off.
	Local *announce.Local
	// Maintenance is what the statistics show of it; nil: none.
	Maintenance func() wire.Maintenance
	Log         *slog.Logger
	Meter       metric.Meter
}

// Mesh is this broker's membership in the pool. It is safe for concurrent use.
type Mesh struct {
	cfg  hints.Config
	deps Deps
	pool *hints.Pool
}

// New builds a Mesh. Nothing is bound before its component starts.
func New(cfg hints.Config, deps Deps) (*Mesh, error) {
	m := &Mesh{cfg: cfg, deps: deps}
	var err error
	m.pool, err = hints.New(cfg, hints.Deps{
		ID: deps.ServerID, Role: hints.Broker, Installation: deps.Installation, Receive: m.receive, Log: deps.Log, Meter: deps.Meter,
	})
	if err != nil {
		return nil, fmt.Errorf("build the hint pool: %w", err)
	}
	return m, nil
}

// Component returns the pool as a part of the process.
func (m *Mesh) Component() lifecycle.Component { return m.pool.Component() }

// Peers returns what announcements go to, nil while there is no pool.
func (m *Mesh) Peers() announce.Peers {
	if !m.cfg.On() {
		return nil
	}
	return peers{m.pool}
}

// Sweepers says whether there is a sweeper in the pool, which tells of what it fires.
func (m *Mesh) Sweepers() bool { return m.pool.Count(hints.Sweeper) > 0 }

// receive does here what a peer has announced.
func (m *Mesh) receive(h hints.Hint) {
	local := m.deps.Local
	switch h.Kind {
	case hints.Pushed:
		// Folded like our own: by then it may be known who has taken them.
		local.Pushed(h.Tenant, h.Queue, h.Partition, h.Count)
	case hints.Taken:
		local.Taken(hotlist.Taking{
			Tenant: h.Tenant, Queue: h.Queue, Partition: h.Partition, Group: h.Group, Count: h.Count, Emptied: h.Emptied, Leased: h.Leased,
		})
	case hints.CursorMoved:
		local.CursorMoved(h.Tenant, h.Queue, h.Partition, h.Group)
	case hints.Released:
		local.Released(announce.Release{
			Tenant: h.Tenant, PartitionID: h.PartitionID, Group: h.Group, Queue: h.Queue, Partition: h.Partition, Full: h.Full,
		})
	case hints.QueueChanged:
		local.QueueChanged(h.Tenant, h.Queue, h.Deleted)
	case hints.FlagsChanged:
		local.FlagsChanged()
	case hints.TimerDue:
		// Timers fire elsewhere.
	}
}

// peers sends announcements.
type peers struct{ pool *hints.Pool }

func (p peers) Pushed(tenant uuid.UUID, queue, partition string, count int) {
	p.pool.Send(hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: queue, Partition: partition, Count: count})
}

func (p peers) Taken(t hotlist.Taking) {
	p.pool.Send(hints.Hint{
		Kind: hints.Taken, Tenant: t.Tenant, Queue: t.Queue, Partition: t.Partition, Group: t.Group,
		Count: t.Count, Emptied: t.Emptied, Leased: t.Leased,
	})
}

func (p peers) Rank(lane uint64) int { return p.pool.Rank(lane) }

func (p peers) Released(r announce.Release) {
	h := hints.Hint{
		Kind: hints.Released, Tenant: r.Tenant, PartitionID: r.PartitionID, Group: r.Group, Full: r.Full,
	}
	if r.Queue != "" { // a lane without its queue names nothing
		h.Queue, h.Partition = r.Queue, r.Partition
	}
	p.pool.Send(h)
}

func (p peers) CursorMoved(tenant uuid.UUID, queue, partition, group string) {
	p.pool.Send(hints.Hint{Kind: hints.CursorMoved, Tenant: tenant, Queue: queue, Partition: partition, Group: group})
}

func (p peers) QueueChanged(tenant uuid.UUID, queue string, deleted bool) {
	p.pool.Send(hints.Hint{Kind: hints.QueueChanged, Tenant: tenant, Queue: queue, Deleted: deleted})
}

func (p peers) TimerDue(at time.Time) { p.pool.Send(hints.Hint{Kind: hints.TimerDue, At: at}) }

func (p peers) FlagsChanged() { p.pool.Send(hints.Hint{Kind: hints.FlagsChanged}) }

// Stats is the state of the pool as the wire shows it: a wire.MeshStats, or a
// wire.SharedState that says why there is none. A server is a broker: nobody sends
// requests to a sweeper.
func (m *Mesh) Stats() any {
	var maintenance wire.Maintenance
	if m.deps.Maintenance != nil {
		maintenance = m.deps.Maintenance()
	}
	if !m.cfg.On() {
		return wire.SharedState{Reason: wire.ReasonNoPeers, Maintenance: maintenance}
	}
	s := m.pool.Stats()
	out := wire.MeshStats{
		ServerID: m.deps.ServerID, Transport: transport, Port: s.Port, PeerCount: len(s.Peers),
		Peers: make([]wire.MeshPeer, len(s.Peers)), ServersAlive: m.pool.Count(hints.Broker),

		MessagesSent: s.Sent, MessagesReceived: s.Received, MessagesDropped: s.Dropped,
		SignatureFailures: s.Refused, HandshakeFailures: s.Refused, Enabled: true, Running: true, Maintenance: maintenance,
	}
	for i, p := range s.Peers {
		out.Peers[i] = wire.MeshPeer{Host: p.Host, Port: p.Port, Connected: p.Connected, Resolved: p.IP != "", ResolvedIP: p.IP}
		if !p.Connected {
			out.ServersDead++
		}
	}
	return out
}
