package hints

import (
	"context"
	"time"

	"github.com/hashicorp/memberlist"
)

// Bounds and parts for the tests.
const (
	MaxPayload  = maxPayload
	MaxDatagram = maxDatagram
	FlushBytes  = flushBytes
	BatchLimit  = batchLimit
	InboxLimit  = inboxLimit
)

// Errors of Decode.
var (
	ErrVersion   = errVersion
	ErrMalformed = errMalformed
)

// Encode packs hints that fit one payload.
func Encode(hints ...Hint) (payload []byte, ok bool) {
	var e encoder
	e.reset()
	for i := range hints {
		if !e.add(&hints[i]) {
			return nil, false
		}
	}
	return e.buf, true
}

// Decode reads a payload.
func Decode(payload []byte) ([]Hint, error) { return decode(payload, nil) }

// Shorten leaves something out of a hint.
func Shorten(h *Hint) bool { return h.shorten() }

// Hurry shortens what a pool waits for.
func (p *Pool) Hurry(look time.Duration) { p.timing.look, p.timing.calm = look, 5*look }

// Limit bounds the batch.
func (p *Pool) Limit(n int) { p.batch.limit = n }

// Wrap stands between the pool and the network.
func (p *Pool) Wrap(wrap func(memberlist.Transport) memberlist.Transport) { p.wrap = wrap }

// Name is the name of the member, Accept what comes from the library.
func (p *Pool) Name() string          { return p.name }
func (p *Pool) Accept(payload []byte) { p.accept(payload) }

// Peer reads one entry of the list of peers.
func Peer(entry string, port int) (string, int) {
	q := parsePeer(entry, port)
	return q.host, q.port
}

// Want pretends that a member of the role is there; Flush empties the batch.
func (p *Pool) Want(r Role) {
	p.members.set("x", &member{role: r})
	empty := []member{}
	p.members.list.Store(&empty)
}
func (p *Pool) Flush(ctx context.Context) { p.flush(ctx) }

// Rest keeps a pool from flushing by itself, after the first time.
func (p *Pool) Rest() { p.timing.flush = time.Hour }

// Waiting is the number of hints that wait.
func (p *Pool) Waiting() int { return p.batch.len() }

// Sent and Overrun count datagrams.
func (p *Pool) Sent() int64    { return p.counts.datagrams[dirSent].Load() }
func (p *Pool) Overrun() int64 { return p.counts.datagrams[dirOverrun].Load() }

// Take merges hints as a pool does before it sends them.
func Take(list ...Hint) []Hint {
	b := newBatch(batchLimit)
	for i := range list {
		b.add(&list[i])
	}
	return b.take(flushBytes, nil)
}
