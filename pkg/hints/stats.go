package hints

import (
	"iter"
	"slices"
)

// Stats is the state of a pool, for people.
type Stats struct {
	Port  int
	Alive int // other members
	Peers []PeerStatus
	// Hints that were sent, received and dropped; calls that were refused.
	Sent, Received, Dropped, Refused int64
}

// PeerStatus is one address of a configured peer, this process among them.
type PeerStatus struct {
	Host      string
	Port      int
	IP        string // empty when the name has no address now
	Connected bool
}

// Stats answers without asking anybody.
func (p *Pool) Stats() Stats {
	s := Stats{
		Port: p.cfg.Port, Alive: len(p.members.snapshot()),
		Sent: total(&p.counts.sent), Received: total(&p.counts.received), Dropped: total(&p.counts.dropped),
		Refused: p.counts.datagrams[dirRejected].Load(),
	}
	p.places.mu.Lock()
	list := p.places.list
	p.places.mu.Unlock()
	if list == nil { // before the first look
		for _, q := range p.cfg.peers() {
			list = append(list, place{peer: q})
		}
	}
	for _, f := range list {
		st := PeerStatus{Host: f.peer.host, Port: f.peer.port}
		if f.addr.IsValid() {
			st.IP, st.Connected = f.addr.Addr().String(), p.here(f.addr)
		}
		s.Peers = append(s.Peers, st)
	}
	return s
}

// rolesOf lists the roles that are present.
func rolesOf(list []member) []Role {
	var roles []Role
	for _, m := range list {
		if !slices.Contains(roles, m.role) {
			roles = append(roles, m.role)
		}
	}
	return roles
}

func withRole(list []member, role Role) iter.Seq[member] {
	return func(yield func(member) bool) {
		for _, m := range list {
			if m.role == role && !yield(m) {
				return
			}
		}
	}
}
