package collector

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tenant = uuid.UUID{15: 1}
	lane   = uuid.UUID{0: 7, 15: 9}
)

// taken is a flush with its rows by name; those of a lane have none.
func taken(c *Counters) (store.WorkerMetrics, map[string]store.QueueMetrics) {
	var f store.MetricsFlush
	c.take(&f)
	rows := make(map[string]store.QueueMetrics, len(f.Queues))
	for _, q := range f.Queues {
		name := ""
		if q.Queue != nil {
			name = *q.Queue
		}
		rows[name] = q
	}
	return f.Worker, rows
}

func TestCountsAreTakenOnce(t *testing.T) {
	t.Parallel()
	c := NewCounters(QueuesDefault)
	c.Add(Queue(tenant, "a"), &Counts{PushRequests: 1, PushMessages: 10})
	c.Add(Queue(tenant, "a"), &Counts{PopRequests: 1, PopMessages: 3, LagMicros: 900, MaxLagMicros: 400})
	c.Add(Queue(tenant, "a"), &Counts{PopRequests: 1, PopMessages: 1, LagMicros: 300, MaxLagMicros: 300})
	c.Add(Queue(tenant, "b"), &Counts{PopRequests: 1, PopEmpty: 1})
	c.Add(Lane(lane), &Counts{AckRequests: 1, AckSuccess: 4, AckFailed: 1})
	c.Add(Key{}, &Counts{PopRequests: 1, PopEmpty: 1})
	c.DeadLettered()
	c.DatabaseFailed()
	c.DatabaseFailed()

	a := Counts{PushRequests: 1, PushMessages: 10, PopRequests: 2, PopMessages: 4, LagMicros: 1200, MaxLagMicros: 400}
	worker, rows := taken(c)
	require.Equal(t, store.WorkerMetrics{Counted: Counts{
		PushRequests: 1, PushMessages: 10, PopRequests: 4, PopMessages: 4, PopEmpty: 2, LagMicros: 1200, MaxLagMicros: 400,
		AckRequests: 1, AckSuccess: 4, AckFailed: 1,
	}, DeadLetters: 1, DatabaseErrors: 2}, worker)
	name := "b"
	require.Len(t, rows, 3)
	require.Equal(t, a, rows["a"].Counted)
	require.Equal(t, store.QueueMetrics{Tenant: &tenant, Queue: &name, Counted: Counts{PopRequests: 1, PopEmpty: 1}}, rows["b"])
	require.Equal(t, store.QueueMetrics{Partition: &lane, Counted: Counts{AckRequests: 1, AckSuccess: 4, AckFailed: 1}}, rows[""])

	worker, rows = taken(c)
	require.Zero(t, worker)
	require.Empty(t, rows)
}

func TestAQueueOfWhichNothingIsCountedIsForgotten(t *testing.T) {
	t.Parallel()
	c := NewCounters(QueuesDefault)
	k := Queue(tenant, "a")
	c.Add(k, &Counts{PushRequests: 1})
	require.True(t, c.Park(k))
	taken(c)
	worker, rows := taken(c)
	require.Equal(t, int64(1), worker.Parked)
	require.Equal(t, int64(1), rows["a"].Parked, "somebody waits for it")
	c.Unpark(k, true)
	worker, rows = taken(c)
	require.Zero(t, worker.Parked)
	require.Empty(t, rows)
	require.Empty(t, c.shardOf(&k).queues)
}

func TestTheNamesOfRequestsAreNotKept(t *testing.T) {
	t.Parallel()
	c := NewCounters(QueuesDefault)
	body := []byte("queue")
	c.Add(Queue(tenant, unsafe.String(&body[0], len(body))), &Counts{PushRequests: 1})
	copy(body, "other")
	_, rows := taken(c)
	require.Contains(t, rows, "queue")
}

func TestQueuesBeyondTheRoomCountForTheProcess(t *testing.T) {
	t.Parallel()
	const room = 2
	c := NewCounters(room * shardCount)
	var names []string // of one shard
	first := Queue(tenant, "q0")
	for i := 0; len(names) <= room; i++ {
		k := Queue(tenant, fmt.Sprint("q", i))
		if c.shardOf(&k) == c.shardOf(&first) {
			names = append(names, k.queue)
		}
	}
	for _, name := range names[:room] {
		c.Add(Queue(tenant, name), &Counts{PushRequests: 1})
	}
	require.Empty(t, c.full)
	require.Zero(t, c.dropped.Load())
	over := Queue(tenant, names[room])
	for range 2 {
		c.Add(over, &Counts{PushRequests: 1})
	}
	require.False(t, c.Park(over))
	require.Len(t, c.full, 1)
	require.Equal(t, int64(3), c.dropped.Load())
	c.Add(Queue(tenant, names[0]), &Counts{PushRequests: 1})

	worker, rows := taken(c)
	require.Equal(t, int64(5), worker.PushRequests)
	require.Equal(t, int64(1), worker.Parked)
	require.Len(t, rows, room)
	require.Equal(t, int64(2), rows[names[0]].PushRequests)
	taken(c)
	c.Add(over, &Counts{PushRequests: 1})
	c.Unpark(over, false) // the queue does not know of it
	worker, rows = taken(c)
	require.Zero(t, worker.Parked)
	require.Zero(t, rows[names[room]].Parked)
}

func TestOneRequestCountsOnceForTheProcess(t *testing.T) {
	t.Parallel()
	for _, queues := range []int{1, 2, tallySearch, tallySearch + 1, 3 * tallySearch} {
		c := NewCounters(QueuesDefault)
		var tally Tally
		for round := range 3 {
			for i := range queues {
				tally.Add(Queue(tenant, fmt.Sprint("q", i)), &Counts{PushMessages: int64(i + round)})
			}
		}
		c.AddTally(&tally, &Counts{PushRequests: 1})
		worker, rows := taken(c)
		require.Equal(t, int64(1), worker.PushRequests)
		require.Len(t, rows, queues)
		sum := int64(0)
		for i := range queues {
			n := int64(3*i + 3)
			require.Equal(t, Counts{PushRequests: 1, PushMessages: n}, rows[fmt.Sprint("q", i)].Counted, "%d of %d", i, queues)
			sum += n
		}
		require.Equal(t, sum, worker.PushMessages)
	}
	c := NewCounters(QueuesDefault)
	c.AddTally(&Tally{}, &Counts{AckRequests: 1})
	worker, rows := taken(c)
	require.Equal(t, int64(1), worker.AckRequests)
	require.Empty(t, rows)
}

func TestTheLanesOfARequestAreTakenForThoseOfOneQueue(t *testing.T) {
	t.Parallel()
	c := NewCounters(QueuesDefault)
	var tally Tally
	tally.Add(Lane(uuid.UUID{1}), &Counts{AckSuccess: 1})
	tally.Add(Queue(tenant, "a"), &Counts{AckSuccess: 2})
	tally.Add(Lane(uuid.UUID{2}), &Counts{AckSuccess: 4})
	c.AddTally(&tally, &Counts{AckRequests: 1})
	var f store.MetricsFlush
	c.take(&f)
	require.Equal(t, Counts{AckRequests: 1, AckSuccess: 7}, f.Worker.Counted)
	got := map[int64]int64{}
	for _, q := range f.Queues {
		got[q.AckSuccess] = q.AckRequests
	}
	require.Equal(t, map[int64]int64{1: 1, 2: 1, 4: 0}, got)
}

func TestWithoutCountersNothingIsCounted(t *testing.T) {
	t.Parallel()
	var c *Counters
	c.Add(Queue(tenant, "a"), &Counts{PushRequests: 1})
	c.AddTally(&Tally{}, &Counts{})
	c.Unpark(Queue(tenant, "a"), c.Park(Queue(tenant, "a")))
	c.DeadLettered()
	c.DatabaseFailed()
}

func TestNothingIsLostWhileCountsAreTaken(t *testing.T) {
	t.Parallel()
	const workers, rounds, queues = 4, 2000, 3
	c := NewCounters(QueuesDefault)
	var counting, taking sync.WaitGroup
	for range workers {
		counting.Go(func() {
			for i := range rounds {
				k := Queue(tenant, fmt.Sprint("q", i%queues))
				known := c.Park(k)
				c.Add(k, &Counts{PopRequests: 1, PopMessages: 2})
				c.Unpark(k, known)
			}
		})
	}
	stop := make(chan struct{})
	var total store.WorkerMetrics
	rowsTotal := map[string]*Counts{}
	taking.Go(func() {
		for last := false; ; {
			worker, rows := taken(c)
			total.Add(&worker.Counted)
			for name, r := range rows {
				if rowsTotal[name] == nil {
					rowsTotal[name] = &Counts{}
				}
				rowsTotal[name].Add(&r.Counted)
			}
			if last {
				return
			}
			select {
			case <-stop:
				last = true
			default:
			}
		}
	})
	counting.Wait()
	close(stop)
	taking.Wait()
	require.Equal(t, Counts{PopRequests: workers * rounds, PopMessages: 2 * workers * rounds}, total.Counted)
	var sum Counts
	for _, n := range rowsTotal {
		sum.Add(n)
	}
	require.Equal(t, total.Counted, sum)
	require.Len(t, rowsTotal, queues)
}

// Not parallel: others would allocate.
func TestCountingAllocatesNothing(t *testing.T) {
	c := NewCounters(QueuesDefault)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		k := Queue(tenant, "a")
		known := c.Park(k)
		c.Add(k, &Counts{PushRequests: 1, PushMessages: 100})
		c.Unpark(k, known)
		var tally Tally
		for range 3 {
			tally.Add(Queue(tenant, "a"), &Counts{AckSuccess: 1})
		}
		c.AddTally(&tally, &Counts{AckRequests: 1})
	}))
}

func BenchmarkAdd(b *testing.B) {
	for _, queues := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("queues=%d", queues), func(b *testing.B) {
			c := NewCounters(QueuesDefault)
			names := make([]string, queues)
			for i := range names {
				names[i] = fmt.Sprint("a queue of some name ", i)
			}
			slices.SortFunc(names, func(a, b string) int { return cmp.Compare(a[len(a)-1], b[len(b)-1]) })
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					c.Add(Queue(tenant, names[i%queues]), &Counts{PushRequests: 1, PushMessages: 100})
				}
			})
		})
	}
}

func TestTotalsOutliveFlushes(t *testing.T) {
	t.Parallel()
	c := NewCounters(QueuesDefault)
	require.Zero(t, c.Totals())
	for i := range 40 {
		c.Add(Queue(tenant, fmt.Sprint("q", i)), &Counts{PushRequests: 1, MaxLagMicros: int64(i)})
		if i == 20 {
			taken(c)
		}
	}
	c.Add(Key{}, &Counts{AckFailed: 3})
	require.Equal(t, Counts{PushRequests: 40, MaxLagMicros: 39, AckFailed: 3}, c.Totals())
	taken(c)
	require.Equal(t, Counts{PushRequests: 40, MaxLagMicros: 39, AckFailed: 3}, c.Totals())
}

func TestPopsThatWaitAreKnownByTheNameOfTheirQueue(t *testing.T) {
	t.Parallel()
	c := NewCounters(QueuesDefault)
	others := uuid.New()
	for _, k := range []Key{Queue(tenant, "a"), Queue(others, "a"), Queue(tenant, "a"), Queue(tenant, "b"), {}} {
		c.Park(k)
	}
	byQueue, all := c.Waiting()
	require.Equal(t, map[string]int64{"a": 3, "b": 1}, byQueue)
	require.Equal(t, int64(5), all)
	c.Unpark(Queue(tenant, "b"), true)
	byQueue, all = c.Waiting()
	require.Equal(t, map[string]int64{"a": 3}, byQueue)
	require.Equal(t, int64(4), all)
}

func TestTheBusiestQueuesAreThoseOfLately(t *testing.T) {
	t.Parallel()
	c := NewCounters(QueuesDefault)
	add := func(name string, n int64) {
		c.Add(Queue(tenant, name), &Counts{PushMessages: n, PopMessages: 2 * n, AckSuccess: n})
	}
	names := func(most int) (names []string) {
		for _, b := range c.Busiest(most) {
			names = append(names, fmt.Sprint(b.Key.Name(), b.Pushed, "+", b.Popped, "+", b.Acked))
		}
		return names
	}
	add("a", 1)
	add("b", 3)
	add("c", 2)
	c.Add(Lane(uuid.UUID{1}), &Counts{AckSuccess: 100}) // whose queue it is, nobody knows
	c.Park(Queue(tenant, "d"))
	require.Equal(t, []string{"b3+6+3", "c2+4+2"}, names(2))
	require.Empty(t, names(9), "they were asked for")
	add("a", 5)
	taken(c)
	add("a", 1)
	add("b", 2)
	taken(c)
	require.Equal(t, []string{"a6+12+6", "b2+4+2"}, names(9), "what a flush takes is told all the same")
	require.Empty(t, names(9))
}
