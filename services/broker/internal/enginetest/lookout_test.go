package enginetest

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/lookout"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

// probing counts the questions for timers.
type probing struct {
	*store.Store
	n atomic.Int64
}

func (p *probing) TimersDue(ctx context.Context, shards []int16, limit int) (store.TimersDue, error) {
	due, err := p.Store.TimersDue(ctx, shards, limit)
	p.n.Add(1)
	return due, err
}

// watchOut runs a lookout in the engine, without any sweeper.
func (e *engine) watchOut() *probing {
	p := &probing{Store: e.store}
	l, err := lookout.New(lookout.Deps{Store: p, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(e.t, err)
	l.Waiting, l.Looks = e.pop.Waiting, []func(context.Context) error{e.hot.Look, e.pop.Look}
	e.pop.OnPark = l.Kick
	e.loop(l.Run)
	return p
}

// schedule schedules a timer for now; nobody is told.
func (e *engine) schedule(queue, key string) {
	e.t.Helper()
	op := fmt.Sprintf(`[{"op":"schedule","queue":%q,"partition":"p","timerKey":%q,"txn":%q,"_messageId":%q,"delayMs":0,"payload":%q}]`,
		queue, key, key, uuid.NewString(), base64.StdEncoding.EncodeToString([]byte(`{}`)))
	_, err := e.store.TimersApply(e.t.Context(), tenant, "", []byte(op))
	require.NoError(e.t, err)
}

// fire does what a sweeper does, except that nobody is told.
func (e *engine) fire(n int) {
	e.t.Helper()
	packer, err := segment.NewPacker(3)
	require.NoError(e.t, err)
	claimed, err := e.store.TimersClaim(e.t.Context(), store.TimerClaim{Shards: store.Shards(0), Lease: time.Minute, Rows: n})
	require.NoError(e.t, err)
	require.Len(e.t, claimed, n)
	var segments []store.FireSegment
	for _, c := range claimed {
		s := store.FireSegment{Tenant: c.Tenant, Queue: c.Queue, Partition: c.Partition, Keys: []string{c.Key}}
		s.Tokens = append(s.Tokens, c.Token)
		s.Blob, s.Hashes, err = packer.Pack([]segment.Frame{{MessageID: c.MessageID, TransactionID: c.Txn, Payload: c.Payload}})
		require.NoError(e.t, err)
		segments = append(segments, s)
	}
	verdicts, err := e.store.TimersFire(e.t.Context(), segments)
	require.NoError(e.t, err)
	for _, v := range verdicts {
		require.True(e.t, v.Fired)
	}
}

func discovering(r *pop.Request) { r.Route, r.Queue, r.Query.Namespace = pop.Discover, "", "labels" }

// delays fires timers for parked pops of every kind, one by one and without a hint,
// and adds up how long the pops take to find them.
func (e *engine) delays(rounds int, probes *probing) (sum time.Duration) {
	e.t.Helper()
	e.configure("labelled", `{"namespace":"labels"}`)
	kinds := map[string][]option{
		"wild": {}, "pinned": {of("p")}, "labelled": {discovering},
	}
	for round := range rounds {
		for queue, options := range kinds {
			found := make(chan time.Time, 1)
			go func() {
				ms, err := e.try(context.Background(), queue, append(options, autoAck, waiting(20*time.Second))...)
				if err != nil || len(ms) != 1 {
					e.t.Errorf("popped %v: %v", ms, err)
				}
				found <- time.Now()
			}()
			require.Eventually(e.t, func() bool { return e.pop.Waiting() == 1 }, 20*time.Second, time.Millisecond)
			e.schedule(queue, fmt.Sprint(round))
			if probes != nil { // timers of another broker have to be seen first
				seen := probes.n.Load()
				require.Eventually(e.t, func() bool { return probes.n.Load() > seen+1 }, 20*time.Second, time.Millisecond)
			}
			e.fire(1)
			fired := time.Now()
			sum += (<-found).Sub(fired)
		}
	}
	return sum
}

// A lost hint costs up to a second. Where there is none at all, a message that a timer
// has become must be found sooner.
func TestMessagesOfTimersAreFoundWithoutHints(t *testing.T) {
	t.Parallel()
	for name, cold := range map[string]bool{"hot list": false, "no hot list": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rounds = 3
			is := shape{cold: cold, pops: pop.Config{PendingGate: true, InitialInterval: time.Second}}
			ordinary := assemble(t, pgtest.New(t), is).delays(rounds, nil)
			e := assemble(t, pgtest.New(t), is)
			quick := e.delays(rounds, e.watchOut())
			t.Logf("%d messages were found after %v in all, without the lookout after %v", 3*rounds, quick, ordinary)
			require.Less(t, 3*quick, ordinary)
		})
	}
}
