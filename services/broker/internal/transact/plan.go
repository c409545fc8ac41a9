package transact

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/dedup"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/registry"
)

// bundle is the state of one transaction. One goroutine owns it.
type bundle struct {
	*Service
	id      string // of this call; no message id
	req     wire.TxRequest
	tx      store.Transaction
	results []wire.TxResult
	acks    [][]int // by position in tx.Acks: its operations
	taken   []registry.Taken
	riders  *riders // nil without any
	refusal string  // why it cannot be submitted at all
	// submitted: the database may have seen it.
	submitted bool
}

type laneKey struct{ queue, partition string }

type idKey struct {
	laneKey
	id string
}

type ackKey struct {
	partition    uuid.UUID
	group, lease string
}

// lane gathers the frames of one segment.
type lane struct {
	laneKey
	frames []segment.Frame
	given  bool // the client named one of its transaction ids
}

// plan turns operations into segments and ack groups, in order of appearance.
func (s *Service) plan(tenant uuid.UUID, sub string, req wire.TxRequest, r *riders) (*bundle, error) {
	ids := make([]uuid.UUID, len(req.Ops)+1)
	if err := s.IDs.Fill(ids); err != nil {
		return nil, err
	}
	b := &bundle{
		Service: s, id: ids[len(req.Ops)].String(), req: req,
		tx: store.Transaction{Tenant: tenant}, results: make([]wire.TxResult, len(req.Ops)), riders: r,
	}
	r.join(&b.tx, sub)
	if err := b.planPushes(sub, ids); err != nil {
		return nil, err
	}
	b.planAcks()
	return b, nil
}

// planPushes packs one segment per lane. A repeat of a transaction id in its lane
// is answered with the first one's message id and stored once.
func (b *bundle) planPushes(sub string, ids []uuid.UUID) error {
	var segments []*lane
	byName := make(map[laneKey]*lane)
	first := make(map[idKey]int)
	for i := range b.req.Ops {
		op := &b.req.Ops[i]
		if op.Kind != wire.TxPush {
			continue
		}
		r := &b.results[i]
		*r = wire.TxResult{Op: wire.TxPush, TransactionID: op.Push.TransactionID, MessageID: ids[i], QueueName: op.Push.Queue}
		if r.TransactionID == "" {
			r.TransactionID = ids[i].String()
		}
		key := laneKey{op.Push.Queue, op.Push.Partition}
		if f, repeated := first[idKey{key, r.TransactionID}]; repeated {
			r.MessageID, r.Duplicate = b.results[f].MessageID, true
			continue
		}
		first[idKey{key, r.TransactionID}] = i
		l := byName[key]
		if l == nil {
			l = &lane{laneKey: key}
			byName[key] = l
			segments = append(segments, l)
		}
		l.given = l.given || op.Push.TransactionID != ""
		l.frames = append(l.frames, segment.Frame{
			MessageID: r.MessageID, TransactionID: r.TransactionID, ProducerSub: sub, Payload: op.Push.Payload,
			TraceID: op.TraceID, HasTrace: op.HasTrace,
		})
	}
	for _, l := range segments {
		blob, hashes, err := b.Packer.Pack(l.frames)
		if err != nil {
			return fmt.Errorf("pack segment: %w", err)
		}
		verified := store.VerifiedMinted
		if l.given {
			verified = store.VerifiedNone
		}
		b.tx.Pushes = append(b.tx.Pushes, store.TxPush{
			Queue: l.queue, Partition: l.partition, Count: len(l.frames), Hashes: hashes, Blob: blob, Verified: verified,
		})
	}
	return nil
}

// planAcks makes one ack of all operations on one (partition, group, lease). An
// operation without a lease joins one that names its own: a second ack would find
// the lease that the first one has ended.
func (b *bundle) planAcks() {
	byKey := make(map[ackKey]int)
	named := b.namedLeases()
	for i := range b.req.Ops {
		op := &b.req.Ops[i]
		if op.Kind != wire.TxAck {
			continue
		}
		b.results[i] = wire.TxResult{Op: wire.TxAck, TransactionID: op.Ack.TransactionID}
		id, err := lanes.ParseID(op.Ack.PartitionID)
		if err != nil {
			b.refusal = fmt.Sprintf("QTXN ack references partition %q: %s; transaction rolled back", op.Ack.PartitionID, err)
			return
		}
		key := ackKey{id, op.Ack.Group, op.Ack.LeaseID}
		if key.lease == "" {
			key.lease = named[key]
		}
		n, ok := byKey[key]
		if !ok {
			n = len(b.tx.Acks)
			byKey[key] = n
			b.tx.Acks = append(b.tx.Acks, b.lease(store.TxAck{PartitionID: id, Group: op.Ack.Group}, key.lease))
			b.acks = append(b.acks, nil)
		}
		a := &b.tx.Acks[n]
		a.Hashes = append(a.Hashes, segment.Hash(op.Ack.TransactionID))
		a.Statuses = append(a.Statuses, store.AckStatus(op.Ack.Status))
		b.acks[n] = append(b.acks[n], i)
	}
}

// namedLeases is the first lease that operations name for each (partition, group).
func (b *bundle) namedLeases() map[ackKey]string {
	named := make(map[ackKey]string)
	for i := range b.req.Ops {
		op := &b.req.Ops[i]
		if op.Kind != wire.TxAck || op.Ack.LeaseID == "" {
			continue
		}
		// One that cannot be read refuses the bundle anyway.
		id, _ := lanes.ParseID(op.Ack.PartitionID)
		if key := (ackKey{id, op.Ack.Group, ""}); named[key] == "" {
			named[key] = op.Ack.LeaseID
		}
	}
	return named
}

// lease says which lease an ack needs: the one its operations name, else one of
// those the request requires, which the database compares with the holder of the
// row under its lock. Without either the ack is not checked.
func (b *bundle) lease(a store.TxAck, own string) store.TxAck {
	if own != "" {
		a.Worker = own
	} else {
		a.Workers = b.req.RequiredLeases
	}
	return a
}

// mark says for every push what is known of its lane's window, so that no lane is
// locked while a window is searched (design rule 7). That ids were minted for this
// request holds for one submission only (rule 5).
func (b *bundle) mark(ctx context.Context) {
	pushes := slices.Clone(b.tx.Pushes) // the submitted ones are not ours any more
	for i := range pushes {
		p := &pushes[i]
		if p.Verified == store.VerifiedMinted && !b.submitted {
			continue
		}
		m := b.Marks.Mark(ctx, b.laneOf(p), p.Hashes)
		p.PartitionID, p.Window, p.Verified = m.PartitionID, m.Window, m.Verified
		if len(m.Suspects) > 0 {
			// A duplicate, in all likelihood. It ends the bundle, so the search is
			// not worth a list of rows.
			p.Verified = m.Suspects[0] - 1
		}
	}
	b.tx.Pushes = pushes
}

func (b *bundle) laneOf(p *store.TxPush) dedup.Lane {
	return dedup.Lane{Tenant: b.tx.Tenant, Queue: p.Queue, Partition: p.Partition}
}

// remember tells the cache what was written.
func (b *bundle) remember(verdicts []store.PushVerdict) {
	for i := range b.tx.Pushes {
		p, v := &b.tx.Pushes[i], &verdicts[i]
		b.Marks.Wrote(b.laneOf(p), v.PartitionID, v.BaseOffset, v.CreatedAt, p.Hashes)
	}
}
