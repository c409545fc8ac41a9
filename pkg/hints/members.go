package hints

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/memberlist"

	"github.com/queenmq/queen/pkg/logging"
)

// member is another process of the pool. The node is a copy: the library changes
// its own.
type member struct {
	node *memberlist.Node
	addr string
	role Role
}

// members are those alive. Readers take a snapshot.
type members struct {
	mu     sync.Mutex
	byName map[string]member
	list   atomic.Pointer[[]member]
	wanted atomic.Uint32 // the kinds that somebody can use, as bits
}

func (m *members) snapshot() []member {
	if list := m.list.Load(); list != nil {
		return *list
	}
	return nil
}

// set adds, replaces or with a nil pointer removes a member. It reports whether
// one was there before.
func (m *members) set(name string, to *member) (known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byName == nil {
		m.byName = make(map[string]member)
	}
	if _, known = m.byName[name]; to == nil {
		delete(m.byName, name)
	} else {
		m.byName[name] = *to
	}
	list := make([]member, 0, len(m.byName))
	var wanted uint32
	for _, other := range m.byName {
		list = append(list, other)
		for k := Pushed; k < kinds; k++ {
			if other.role.wants(k) {
				wanted |= 1 << k
			}
		}
	}
	m.list.Store(&list)
	m.wanted.Store(wanted)
	return known
}

func (m *members) want(k Kind) bool { return m.wanted.Load()&(1<<k) != 0 }

// joined and left are called under the library's lock: they must not call it.
func (p *Pool) joined(n *memberlist.Node) {
	if n.Name == p.name {
		return
	}
	node := *n
	node.Addr, node.Meta = slices.Clone(n.Addr), slices.Clone(n.Meta)
	var meta nodeMeta
	_ = json.Unmarshal(node.Meta, &meta) // a member without a role gets everything
	if !p.members.set(node.Name, &member{node: &node, addr: addressOf(&node), role: meta.Role}) {
		p.deps.Log.LogAttrs(context.Background(), slog.LevelInfo, "peer joined the hint pool", slog.String(logging.KeyMember, node.Name),
			slog.String(logging.KeyAddr, addressOf(&node)), slog.String(logging.KeyRole, string(meta.Role)))
	}
}

func (p *Pool) left(n *memberlist.Node) {
	if n.Name == p.name || !p.members.set(n.Name, nil) {
		return
	}
	// The library does not tell a peer that stopped from one that is silent.
	p.deps.Log.LogAttrs(context.Background(), slog.LevelInfo, "peer is gone from the hint pool", slog.String(logging.KeyMember, n.Name),
		slog.String(logging.KeyAddr, addressOf(n)))
	select {
	case p.lost <- struct{}{}: // look for it
	default:
	}
}

// Count is how many other members have a role.
func (p *Pool) Count(role Role) (n int) {
	for _, m := range p.members.snapshot() {
		if m.role == role {
			n++
		}
	}
	return n
}

// observe reports the members by role.
func (p *Pool) observe(report func(Role, int64)) {
	byRole := map[Role]int64{Broker: 0, Sweeper: 0}
	for _, m := range p.members.snapshot() {
		byRole[m.role]++
	}
	for role, n := range byRole {
		if role != Broker && role != Sweeper {
			role = "other" // a label must not be for peers to choose
		}
		report(role, n)
	}
}

// Rank is how many other brokers come before this one in the order of a lane, for
// which a number stands. Members that know each other agree about it, and every
// broker is first at about as many lanes.
func (p *Pool) Rank(lane uint64) (n int) {
	own := weight(p.name, lane)
	for _, m := range p.members.snapshot() {
		if m.role == Broker && weight(m.node.Name, lane) > own {
			n++
		}
	}
	return n
}

// weight is where a member stands in the order of a lane (rendezvous hashing).
func weight(name string, lane uint64) uint64 {
	key := binary.BigEndian.AppendUint64(make([]byte, 0, 64), lane)
	sum := sha256.Sum256(append(key, name...))
	return binary.BigEndian.Uint64(sum[:])
}
