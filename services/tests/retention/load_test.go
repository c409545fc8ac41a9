package retention_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// seeded is a source of randomness; its seed is printed with a failure.
// QUEEN_TEST_SEED repeats a run.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("QUEEN_TEST_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with QUEEN_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1))
}

// turmoil is many clients and more at once, each in a loop until stop.
type turmoil struct {
	t      *testing.T
	cancel context.CancelFunc
	loops  sync.WaitGroup
	rng    *rand.Rand
	turns  sync.Map // name -> *atomic.Int64
}

// newTurmoil answers the life of its loops, too.
func newTurmoil(t *testing.T) (context.Context, *turmoil) {
	t.Helper()
	x := &turmoil{t: t, rng: seeded(t)}
	ctx, cancel := context.WithCancel(t.Context())
	x.cancel = cancel
	t.Cleanup(x.stop)
	return ctx, x
}

func (x *turmoil) stop() {
	x.cancel()
	x.loops.Wait()
}

// loop repeats something with a source of randomness of its own. An error fails
// the test, unless the end came in between.
func (x *turmoil) loop(ctx context.Context, name string, pause time.Duration, do func(ctx context.Context, rng *rand.Rand) error) {
	rng := rand.New(rand.NewPCG(x.rng.Uint64(), 2))
	count, _ := x.turns.LoadOrStore(name, new(atomic.Int64))
	x.loops.Go(func() {
		for ctx.Err() == nil {
			if err := do(ctx, rng); err != nil && ctx.Err() == nil {
				x.t.Errorf("%s: %v", name, err)
				return
			}
			count.(*atomic.Int64).Add(1)
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rng.Int64N(int64(2*pause) + 1))):
			}
		}
	})
}

// requireTurns requires that every loop made some turns.
func (x *turmoil) requireTurns() {
	x.t.Helper()
	x.turns.Range(func(name, count any) bool {
		n := count.(*atomic.Int64).Load()
		x.t.Logf("%s: %d", name, n)
		require.Positive(x.t, n, name)
		return true
	})
}

// ledger counts the messages of one queue whose push was acknowledged.
type ledger struct {
	queue string
	lanes int
	kept  atomic.Int64 // acknowledged
	again atomic.Int64 // refused and tried again
}

// items are up to n messages for random lanes, with ids to try again with.
func (l *ledger) items(rng *rand.Rand, n int) []harness.Item {
	items := make([]harness.Item, 1+rng.IntN(n))
	for i := range items {
		items[i] = harness.Item{Queue: l.queue, Partition: fmt.Sprintf("lane-%02d", rng.IntN(l.lanes)),
			TransactionID: fmt.Sprintf("%016x", rng.Uint64()), Payload: i}
	}
	return items
}

// push stores all of the items, those that are refused by another try.
func (l *ledger) push(ctx context.Context, b *harness.Broker, items []harness.Item) error {
	// What was sent is counted whatever the end of the test does to the answer.
	ctx = context.WithoutCancel(ctx)
	for range 10 {
		results, err := b.TryPush(ctx, items...)
		if err != nil {
			return err
		}
		var refused []harness.Item
		for i, r := range results {
			switch r.Status {
			case "queued", "duplicate":
				l.kept.Add(1)
			default:
				refused = append(refused, items[i])
			}
		}
		if len(refused) == 0 {
			return nil
		}
		l.again.Add(int64(len(refused)))
		items = refused
	}
	return fmt.Errorf("%d messages are refused for good", len(items))
}

// followLanes notes every lane that is ever made, of which queue it was.
func followLanes(t *testing.T, db *harness.Database) {
	t.Helper()
	db.Exec(t, `CREATE TABLE public.lanes (id UUID, queue_id UUID, name TEXT)`)
	db.Exec(t, `GRANT INSERT ON public.lanes TO PUBLIC`)
	db.Exec(t, `CREATE FUNCTION public.note_lane() RETURNS trigger LANGUAGE plpgsql AS $f$
		BEGIN INSERT INTO public.lanes VALUES (NEW.id, NEW.queue_id, NEW.name); RETURN NULL; END $f$`)
	db.Exec(t, `CREATE TRIGGER zz_lanes AFTER INSERT ON queen.log_partitions FOR EACH ROW EXECUTE FUNCTION public.note_lane()`)
}

// requireNothingLost requires that each message whose push was acknowledged is
// still there, or that the history tells of its removal.
func (l *ledger) requireNothingLost(t *testing.T, db *harness.Database) {
	t.Helper()
	var live, removed int64
	db.Row(t, `
		SELECT COALESCE((SELECT sum(s.end_offset - s.base_offset + 1) FROM queen.log_segments AS s WHERE s.partition_id = ANY (ids)), 0)::bigint,
		       COALESCE((SELECT sum(h.messages_deleted) FROM queen.retention_history AS h WHERE h.partition_id = ANY (ids)), 0)::bigint
		FROM (SELECT array_agg(x.id) AS ids FROM public.lanes AS x JOIN queen.queues AS q ON q.id = x.queue_id WHERE q.name = $1) AS mine`,
		[]any{l.queue}, []any{&live, &removed})
	t.Logf("%s: %d acknowledged, %d live, %d removed, %d tried again", l.queue, l.kept.Load(), live, removed, l.again.Load())
	require.Equal(t, l.kept.Load(), live+removed, l.queue)
}
