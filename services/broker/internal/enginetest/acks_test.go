package enginetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// side is one of two installations that are to answer alike: some brokers over a
// database of their own.
type side struct {
	brokers []*engine
	batches [][]message // every leased batch so far, by number
}

// cursors is what the acks have left behind, without what is random.
func (s *side) cursors(queue string) (rows []string) {
	e := s.brokers[0]
	require.NoError(e.t, e.db.Do(e.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		found, err := conn.Query(ctx, `SELECT format('%s %s at %s end %s leased %s retries %s attempts %s/%s consumed %s letters %s',
				p.name, c.consumer_group, c.committed, c.batch_end, c.worker_id IS NOT NULL, c.batch_retry_count, c.attempt_offset,
				c.attempt_count, c.total_consumed,
				(SELECT count(*) FROM queen.log_dlq AS d WHERE d.partition_id = p.id AND d.consumer_group = c.consumer_group))
			FROM queen.log_consumers AS c
			JOIN queen.log_partitions AS p ON p.id = c.partition_id
			JOIN queen.queues AS q ON q.id = p.queue_id
			WHERE q.name = $1 ORDER BY 1`, queue)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(found, pgx.RowTo[string])
		return err
	}))
	return rows
}

func (s *side) expire(queue string) {
	e := s.brokers[0]
	require.NoError(e.t, e.db.Do(e.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `UPDATE queen.log_consumers AS c SET lease_expires_at = now() - interval '1 second'
			FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
			WHERE p.id = c.partition_id AND q.name = $1 AND c.worker_id IS NOT NULL`, queue)
		return err
	}))
}

// ackPick is one acknowledgement of a message of a batch.
type ackPick struct {
	batch, message int
	lease          int // the batch whose lease is named; -1 for none
	status         string
}

func (s *side) items(picks []ackPick, group string) []wire.AckItem {
	out := make([]wire.AckItem, len(picks))
	for i, p := range picks {
		out[i] = ackOf(s.batches[p.batch][p.message], group, p.status)
		out[i].Error = "because"
		if out[i].LeaseID = ""; p.lease >= 0 {
			out[i].LeaseID = s.batches[p.lease][0].LeaseID
		}
	}
	return out
}

func (s *side) transact(broker int, picks []ackPick, group string, push wire.PushItem) (wire.TxResponse, error) {
	var req wire.TxRequest
	for _, it := range s.items(picks, group) {
		req.Ops = append(req.Ops, wire.TxOp{Kind: wire.TxAck, Ack: it})
	}
	req.Ops = append(req.Ops, wire.TxOp{Kind: wire.TxPush, Push: push})
	resp, err := s.brokers[broker].tx.Run(context.Background(), tenant, "", req)
	resp.TransactionID = ""
	for i := range resp.Results {
		resp.Results[i].MessageID = [16]byte{}
	}
	return resp, err
}

// choose draws one of the choices. Unlike the generators of numbers it favours none.
func choose[T any](t *rapid.T, label string, choices ...T) T {
	n := 0
	for _, bit := range rapid.SliceOfN(rapid.Bool(), 10, 10).Draw(t, label) {
		n *= 2
		if bit {
			n++
		}
	}
	return choices[n%len(choices)]
}

// upTo draws a number from 0 to n-1.
func upTo(t *rapid.T, label string, n int) int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return choose(t, label, all...)
}

// drawAcks picks whole batches mostly, and all the ways in which an ack can be
// something else.
func drawAcks(t *rapid.T, batches [][]message) (picks []ackPick) {
	for range choose(t, "batches", 1, 1, 2) {
		// Mostly a recent batch.
		n := max(0, len(batches)-1-choose(t, "age", 0, 0, 0, 0, 1, 2))
		status := wire.AckCompleted
		lease := choose(t, "lease", n, n, n, n, n, n, n, -1, 0)
		var of []ackPick
		for m := range batches[n] {
			of = append(of, ackPick{n, m, lease, status})
		}
		of = rapid.Permutation(of).Draw(t, "order")
		switch upTo(t, "form", 9) {
		case 0: // a part
			of = of[:1+upTo(t, "part", len(of))]
		case 1: // a signal
			of[upTo(t, "poison", len(of))].status = choose(t, "signal",
				wire.AckFailed, wire.AckRetry, wire.AckDLQ)
		case 2: // one id twice
			of = append(of, of[0])
		default:
		}
		picks = append(picks, of...)
	}
	return picks
}

// The accelerators must not be seen: two brokers with them and one without, over
// databases of their own, answer the same requests in the same words.
func TestAcksAnswerAlikeWithAndWithoutAccelerators(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	fast := &side{brokers: []*engine{broker(t, db, false), broker(t, db, false)}}
	plain := &side{brokers: []*engine{broker(t, pgtest.New(t), true)}}
	plain.brokers = append(plain.brokers, plain.brokers[0])
	sides := []*side{fast, plain}
	var runs atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		queue := fmt.Sprint("q", runs.Add(1))
		options := fmt.Sprintf(`{"dedupWindowSeconds":%d,"retryLimit":%d,"deadLetterQueue":%t,"dlqAfterMaxRetries":false}`,
			choose(t, "window", 0, 3600), upTo(t, "retries", 3), rapid.Bool().Draw(t, "letters"))
		for _, s := range sides {
			s.batches = nil
			s.brokers[0].configure(queue, options)
		}
		both := func(what string, do func(s *side) any) {
			a, b := do(fast), do(plain)
			if diff := cmp.Diff(b, a); diff != "" {
				t.Fatalf("%s: plain and accelerated differ: %s", what, diff)
			}
		}
		sent := 0
		last := 0 // the broker of the last batch
		pop := func(at string, broker int) {
			n := 1 + upTo(t, "batch", 4)
			both("pop", func(s *side) any {
				ms := s.brokers[broker].popped(queue, of(at), group("g"), batch(n), lease(60))
				if len(ms) > 0 {
					s.batches, last = append(s.batches, ms), broker
				}
				return ids(ms)
			})
		}
		for range 15 {
			at, broker := choose(t, "lane", "a", "a", "b"), upTo(t, "broker", 2)
			step := upTo(t, "step", 10)
			if len(fast.batches) == 0 {
				step = min(step, 3)
			}
			switch {
			case step < 2:
				var msgs []wire.PushItem
				for range 1 + upTo(t, "messages", 4) {
					sent++
					// With the window off some ids repeat.
					msgs = append(msgs, item(queue, at, fmt.Sprint("m", sent-choose(t, "repeat", 0, 0, 0, 0, 1))))
				}
				both("push", func(s *side) any { return statuses(s.brokers[broker].pushed(msgs...)) })
				pop(at, broker)
			case step < 4:
				pop(at, broker)
			case step < 8:
				broker = choose(t, "acker", last, last, broker)
				picks := drawAcks(t, fast.batches)
				both("ack", func(s *side) any { return s.brokers[broker].acked(s.items(picks, "g")...) })
			case step == 8 && choose(t, "transaction", true, true, false):
				picks := drawAcks(t, fast.batches)
				sent++
				push := item(queue, choose(t, "target", "a", "b"), fmt.Sprint("m", sent))
				both("transaction", func(s *side) any {
					resp, err := s.transact(broker, picks, "g", push)
					return []any{resp.Success, resp.Reason, resp.Error, resp.Results, err != nil}
				})
			case step == 8:
				n := len(fast.batches) - 1
				both("extend", func(s *side) any {
					res, err := s.brokers[broker].ack.Extend(context.Background(), tenant, s.batches[n][0].LeaseID, 90)
					return []any{res.Renewed, res.ExpiresAt != "", err}
				})
			default:
				for _, s := range sides {
					s.expire(queue)
				}
			}
		}
		both("cursors", func(s *side) any { return s.cursors(queue) })
	})
	require.Zero(t, plain.brokers[0].whole.Load())
	require.Greater(t, fast.brokers[0].whole.Load(), int64(20))
	require.Greater(t, fast.brokers[1].whole.Load(), int64(20))
}

func TestRule16ABatchWithARepeatedIDIsAckedByItsHashes(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.configure("q", `{"dedupWindowSeconds":0}`)
	for _, id := range []string{"x", "y", "x"} {
		e.queued(item("q", "a", id))
	}
	ms := e.popped("q", of("a"), batch(3))
	require.Len(t, ms, 3)
	// Both mentions of x name its first copy, which is all that an ack can say. The
	// end of the batch is not reached, and the second copy redelivers.
	rs := e.settle(wire.AckCompleted, ms...)
	require.False(t, rs[0].LeaseReleased)
	require.Zero(t, e.whole.Load())
	e.settle(wire.AckCompleted, ms[2])
	require.Empty(t, e.popped("q", of("a")))
}

func TestABatchOfAnotherBrokerIsAckedByItsHashes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	a, b := broker(t, db, false), broker(t, db, false)
	a.queued(items("q", "p", "m", 4)...)
	ms := a.popped("q", of("p"), batch(4))
	// The other broker does not know the batch, and moves its cursor behind this one's back.
	rs := b.settle(wire.AckCompleted, ms[:2]...)
	require.False(t, rs[0].LeaseReleased)
	rs = a.settle(wire.AckCompleted, ms...)
	for i, r := range rs {
		require.Equal(t, i < 2, r.Noop)
		require.True(t, r.LeaseReleased)
	}
	for _, again := range []*engine{a, b} {
		for _, r := range again.acked(ackOf(ms[0], store.QueueModeGroup, wire.AckCompleted)) {
			require.Equal(t, "invalid or expired lease", r.Error)
		}
	}
}

func TestALeaseIsExtendedByAnyBroker(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	brokers := []*engine{broker(t, db, false), broker(t, db, false), broker(t, db, true)}
	for p := range 3 {
		brokers[0].queued(item("q", fmt.Sprint("p", p), "x"))
	}
	ms := brokers[0].popped("q", partitions(3))
	require.Len(t, ms, 3)
	for i := range 6 {
		e := brokers[i%3]
		res, err := e.ack.Extend(t.Context(), tenant, ms[0].LeaseID, 100+i)
		require.NoError(t, err)
		require.Equal(t, 3, res.Renewed)
		at, err := time.Parse(time.RFC3339Nano, res.ExpiresAt)
		require.NoError(t, err)
		require.Greater(t, time.Until(at), 50*time.Second)
	}
	brokers[1].settle(wire.AckCompleted, ms[0])
	for _, e := range brokers {
		res, err := e.ack.Extend(t.Context(), tenant, ms[0].LeaseID, 300)
		require.NoError(t, err)
		require.Equal(t, 2, res.Renewed)
	}
}

func TestAWholeAckEndsTheLeaseItsBrokerRemembers(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("q", "a", "m", 3)...)
	ms := e.popped("q", of("a"))
	e.settle(wire.AckCompleted, ms...)
	require.EqualValues(t, 1, e.whole.Load())
	_, known := e.registry.Lanes(ms[0].LeaseID)
	require.False(t, known)
	e.queued(items("q", "a", "n", 1)...)
	require.Equal(t, []string{"n0"}, ids(e.popped("q", of("a"))))
}
