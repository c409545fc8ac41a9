package timers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

// hooked is a store whose calls can be met before they are made, and after.
type hooked struct {
	*store.Store
	beforeFire func(segs []store.FireSegment)
	afterFire  func() error

	mu     sync.Mutex
	probes []time.Time
	fires  []int // bytes of the blobs
}

func (h *hooked) TimersDue(ctx context.Context, shards []int16, limit int) (store.TimersDue, error) {
	h.mu.Lock()
	h.probes = append(h.probes, time.Now())
	h.mu.Unlock()
	return h.Store.TimersDue(ctx, shards, limit)
}

func (h *hooked) TimersFire(ctx context.Context, segs []store.FireSegment) ([]store.FireVerdict, error) {
	if h.beforeFire != nil {
		h.beforeFire(segs)
	}
	out, err := h.Store.TimersFire(ctx, segs)
	h.mu.Lock()
	bytes := 0
	for _, s := range segs {
		bytes += len(s.Blob)
	}
	h.fires = append(h.fires, bytes)
	h.mu.Unlock()
	if err == nil && h.afterFire != nil {
		err = h.afterFire()
	}
	return out, err
}

// site is a database, and what sweeps it.
type site struct {
	*testing.T
	db    *pgdb.DB
	store *store.Store

	mu        sync.Mutex
	announced map[string]int
}

func newSite(t *testing.T) *site {
	t.Helper()
	db := pgtest.New(t)
	return &site{T: t, db: db, store: store.New(db), announced: map[string]int{}}
}

// sweeper works over the site's database.
func (s *site) sweeper(cfg Config, change ...func(*hooked)) (*Sweeper, *hooked) {
	s.Helper()
	return s.measuredSweeper(cfg, noop.NewMeterProvider().Meter(""), change...)
}

func (s *site) measuredSweeper(cfg Config, meter metric.Meter, change ...func(*hooked)) (*Sweeper, *hooked) {
	s.Helper()
	packer, err := segment.NewPacker(segment.DefaultLevel)
	require.NoError(s, err)
	h := &hooked{Store: s.store}
	for _, c := range change {
		c(h)
	}
	sweeper, err := newSweeper(cfg, Deps{
		Packer: packer, Log: logtest.New(s), Meter: meter,
		Announce: func(_ uuid.UUID, queue, partition string, n int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.announced[queue+"/"+partition] += n
		},
	}, h)
	require.NoError(s, err)
	return sweeper, h
}

func (s *site) exec(sql string, args ...any) {
	s.Helper()
	require.NoError(s, s.db.Do(s.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}))
}

func (s *site) one(dest any, sql string, args ...any) {
	s.Helper()
	require.NoError(s, s.db.Do(s.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(dest)
	}))
}

func (s *site) count(sql string, args ...any) (n int) {
	s.Helper()
	s.one(&n, sql, args...)
	return n
}

func (s *site) pending() int { s.Helper(); return s.count(`SELECT count(*) FROM queen.log_timers`) }

// plan is an operation on a timer of the queue q.
type plan struct {
	Op          string `json:"op"`
	Queue       string `json:"queue"`
	Key         string `json:"timerKey"`
	Partition   string `json:"partition,omitempty"`
	DelayMs     int    `json:"delayMs"`
	Txn         string `json:"txn"`
	Payload     string `json:"payload"`
	PayloadZstd bool   `json:"payloadZstd,omitempty"`
	Encrypted   bool   `json:"encrypted,omitempty"`
}

func planned(key, payload string) plan {
	return plan{Op: "schedule", Queue: "q", Key: key, Txn: "txn-" + key, Payload: base64.StdEncoding.EncodeToString([]byte(payload))}
}

// schedule returns the promised ids by key.
func (s *site) schedule(sub string, plans ...plan) map[string]uuid.UUID {
	s.Helper()
	ops, err := json.Marshal(plans)
	require.NoError(s, err)
	out, err := s.store.TimersApply(s.Context(), store.DefaultTenant(), sub, ops)
	require.NoError(s, err)
	var results []struct {
		TimerKey  string
		MessageID uuid.UUID
	}
	require.NoError(s, json.Unmarshal(out.Results, &results))
	ids := map[string]uuid.UUID{}
	for _, r := range results {
		ids[r.TimerKey] = r.MessageID
	}
	return ids
}

// lay inserts timers without a look at them, due since so many milliseconds.
func (s *site) lay(n, lanes int) { s.Helper(); backlog(s, s.db, n, lanes) }

// log is what every lane of the queue holds.
func (s *site) log() map[string][]segment.Frame {
	s.Helper()
	type row struct {
		lane string
		n    int
		blob []byte
	}
	var rows []row
	require.NoError(s, s.db.Do(s.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		found, err := conn.Query(ctx, `SELECT p.name, (g.end_offset - g.base_offset + 1)::INT, g.blob FROM queen.log_segments g
			JOIN queen.log_partitions p ON p.id = g.partition_id ORDER BY p.name, g.base_offset`)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(found, func(r pgx.CollectableRow) (out row, err error) {
			return out, r.Scan(&out.lane, &out.n, &out.blob)
		})
		return err
	}))
	out := map[string][]segment.Frame{}
	for _, r := range rows {
		out[r.lane] = append(out[r.lane], frames(s.T, r.blob, r.n)...)
	}
	return out
}

func txns(frames []segment.Frame) (out []string) {
	for _, f := range frames {
		out = append(out, f.TransactionID)
	}
	return out
}

// once drains, prunes and measures.
func (s *site) once(sweeper *Sweeper) Report {
	s.Helper()
	report, err := sweeper.Once(s.Context())
	require.NoError(s, err)
	return report
}

func TestTimersBecomeMessages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	plain, secret, small := planned("a", `{"n": 1}`), planned("b", `{"n": 2}`), planned("c", "")
	secret.Encrypted, secret.Partition = true, "other"
	small.PayloadZstd, small.Payload = true, base64.StdEncoding.EncodeToString(squeezed(t, `{"n": 3}`))
	later := planned("later", "{}")
	later.DelayMs = 3_600_000
	ids := s.schedule("somebody", plain, secret, small, later)
	sweeper, _ := s.sweeper(Defaults())
	report := s.once(sweeper)
	require.Equal(t, []int{3, 3, 3, 2}, []int{report.Due, report.Claimed, report.Fired, report.Segments})
	require.Equal(t, map[string][]segment.Frame{
		"Default": {
			{MessageID: ids["a"], TransactionID: "txn-a", ProducerSub: "somebody", Payload: []byte(`{"n": 1}`)},
			{MessageID: ids["c"], TransactionID: "txn-c", ProducerSub: "somebody", Payload: []byte(`{"n": 3}`)},
		},
		"other": {{MessageID: ids["b"], TransactionID: "txn-b", ProducerSub: "somebody", Payload: []byte(`{"n": 2}`), Encrypted: true}},
	}, s.log())
	require.Equal(t, map[string]int{"q/Default": 2, "q/other": 1}, s.announced)
	require.Equal(t, 1, s.pending(), "the one that is due later")
}

func TestALaneIsInTheOrderOfItsInstants(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ parallelism, claim, bytes, fires int }{
		{1, 200, 8 << 20, 6}, // many claims
		{4, 200, 8 << 20, 6},
		{1, 1000, 8 << 20, 2},
		{1, 5000, 40_000, 10}, // one claim, and many fires deliver it
		{4, 5000, 40_000, 10},
	} {
		s := newSite(t)
		const timers = 6000
		s.lay(timers, 7)
		cfg := Defaults()
		cfg.Parallelism, cfg.ClaimBatch, cfg.MaxFireBytes, cfg.FireRatePerTenant = c.parallelism, c.claim, int64(c.bytes), 100
		sweeper, h := s.sweeper(cfg)
		require.Equal(t, timers, s.once(sweeper).Fired)
		require.GreaterOrEqual(t, len(h.fires), c.fires)
		for lane, frames := range s.log() {
			var numbers []int
			for _, txn := range txns(frames) {
				var n int
				_, err := fmt.Sscanf(txn, "txn-%d", &n)
				require.NoError(t, err)
				numbers = append(numbers, n)
			}
			require.True(t, slices.IsSorted(numbers), "%+v: lane %s", c, lane)
		}
	}
}

// With one lane, all workers but one have nothing to do.
func TestWorkersWithoutALane(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.lay(20, 1)
	cfg := Defaults()
	cfg.Parallelism = 4
	sweeper, _ := s.sweeper(cfg)
	require.Equal(t, 20, s.once(sweeper).Fired)
}

func TestAFireIsCappedInBytes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.lay(100, 1)
	cfg := Defaults()
	cfg.MaxFireBytes = 2600 // ten frames of about 250 bytes
	sweeper, h := s.sweeper(cfg)
	require.Equal(t, 100, s.once(sweeper).Fired)
	require.Greater(t, len(h.fires), 9)
	require.LessOrEqual(t, slices.Max(h.fires), 2600)
	require.Equal(t, len(h.fires), s.count(`SELECT count(DISTINCT xmin::TEXT) FROM queen.log_segments`), "each is a transaction of its own")
}

func TestABrokenPayloadEndsAmongTheDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	broken := planned("broken", "no zstd")
	broken.PayloadZstd = true
	s.schedule("", planned("a", "1"), broken, planned("z", "2"))
	cfg := Defaults()
	cfg.MaxAttempts, cfg.BackoffMin, cfg.BackoffMax = 3, ms, ms
	sweeper, _ := s.sweeper(cfg)
	report := s.once(sweeper)
	require.Equal(t, 2, report.Fired, "the others of its segment do not suffer")
	for report.DeadLettered == 0 { // its backoff is a millisecond
		report = s.once(sweeper)
		require.Zero(t, report.Fired)
	}
	require.Zero(t, s.pending())
	require.Equal(t, []string{"txn-a", "txn-z"}, txns(s.log()["Default"]))
	require.Equal(t, 1, s.count(`SELECT count(*) FROM queen.log_dlq WHERE consumer_group = '__timer__' AND "offset" = -1 AND retry_count = 3
		AND transaction_id = 'txn-broken' AND error LIKE 'decompress the payload:%' AND payload = '{"$raw": "bm8genN0ZA=="}'`))
}

func TestADeadLetterHoldsWhatAConsumerWouldHaveGot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		payload string
		zstd    bool
		want    string
	}{
		"JSON":                  {`{"a": 1}`, false, `{"a": 1}`},
		"compressed JSON":       {`{"a": 1}`, true, `{"a": 1}`},
		"no JSON":               {`hello`, false, `{"$raw": "aGVsbG8="}`},
		"what jsonb refuses":    {`{"a": "\u0000"}`, false, `{"$raw": "eyJhIjogIlx1MDAwMCJ9"}`},
		"compressed and so":     {`{"a": "\u0000"}`, true, `{"$raw": "eyJhIjogIlx1MDAwMCJ9"}`},
		"a number beyond bound": {`1e999999`, false, `{"$raw": "MWU5OTk5OTk="}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			p := planned("a", tc.payload)
			if tc.zstd {
				p.PayloadZstd, p.Payload = true, base64.StdEncoding.EncodeToString(squeezed(t, tc.payload))
			}
			s.schedule(strings.Repeat("s", segment.MaxIDBytes+1), p) // which no frame holds
			cfg := Defaults()
			cfg.MaxAttempts = 1
			sweeper, _ := s.sweeper(cfg)
			require.Equal(t, 1, s.once(sweeper).DeadLettered)
			var got string
			s.one(&got, `SELECT payload::TEXT FROM queen.log_dlq`)
			require.Equal(t, tc.want, got)
			require.Zero(t, s.pending())
		})
	}
}

// A queue with such a name can neither be born nor hold a dead letter.
func TestAQueueThatTheLogRefusesHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.lay(10, 2)
	s.exec(`UPDATE queen.log_timers SET queue = repeat('q', 300) WHERE timer_key IN ('order-3', 'order-4')`)
	cfg := Defaults()
	cfg.MaxAttempts, cfg.BackoffMin, cfg.BackoffMax = 2, ms, ms
	sweeper, _ := s.sweeper(cfg)
	require.Equal(t, 8, s.once(sweeper).Fired)
	for s.count(`SELECT min(attempts) FROM queen.log_timers`) < 3 {
		report := s.once(sweeper)
		require.Zero(t, report.Fired+report.DeadLettered)
	}
	require.Equal(t, 2, s.pending(), "nothing is lost")
	require.Equal(t, 2, s.count(`SELECT count(*) FROM queen.log_timers WHERE claim_token IS NULL AND last_error <> ''`))
}

func TestALapsedLeaseIsFiredByAnotherSweeperOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.lay(300, 10)
	other, _ := s.sweeper(Defaults())
	cfg := Defaults()
	cfg.Lease = 100 * ms
	var stolen Report
	var once sync.Once
	slow, _ := s.sweeper(cfg, func(h *hooked) {
		h.beforeFire = func([]store.FireSegment) {
			once.Do(func() {
				for stolen.Fired < 300 { // as soon as the leases lapse
					r, err := other.drainAll(t.Context())
					require.NoError(t, err)
					stolen.add(r)
				}
			})
		}
	})
	report := s.once(slow)
	require.Equal(t, 300, stolen.Fired)
	require.Zero(t, report.Fired)
	require.Equal(t, report.Claimed, report.Stale)
	s.exactlyOnce(300)
}

// exactlyOnce checks that every timer has become one message.
func (s *site) exactlyOnce(n int) {
	s.Helper()
	require.Zero(s, s.pending())
	seen := map[string]bool{}
	for _, frames := range s.log() {
		for _, txn := range txns(frames) {
			require.False(s, seen[txn], "twice: %s", txn)
			seen[txn] = true
		}
	}
	require.Len(s, seen, n)
}

func TestTwoSweepersShareABacklog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const timers = 8000
	s.lay(timers, 50)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	var hooks []*hooked
	for range 2 {
		sweeper, h := s.sweeper(Defaults())
		hooks = append(hooks, h)
		running.Go(func() { _ = sweeper.Run(ctx) })
	}
	require.Eventually(t, func() bool { return s.pending() == 0 }, time.Minute, 10*ms)
	cancel()
	running.Wait()
	s.exactlyOnce(timers)
	total := 0
	for _, n := range s.announced {
		total += n
	}
	require.Equal(t, timers, total)
	for _, h := range hooks {
		require.Less(t, len(h.probes), timers/50, "no spin")
	}
}

func TestALostAnswerOfARealFire(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.lay(20, 2)
	sweeper, h := s.sweeper(Defaults(), func(h *hooked) { h.afterFire = func() error { return errGone } })
	report, err := sweeper.Once(t.Context())
	require.ErrorIs(t, err, errGone)
	require.Equal(t, []int{20, 20, 0}, []int{report.Claimed, report.Fired, report.Failed}, "the rows tell")
	require.Len(t, h.fires, 1)
	require.Equal(t, map[string]int{"q/lane-0": 10, "q/lane-1": 10}, s.announced)
	s.exactlyOnce(20)
}

func TestAStoppedSweeperLeavesItsTimersToOthersAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.lay(2000, 20)
	ctx, cancel := context.WithCancel(t.Context())
	firing := 0
	sweeper, _ := s.sweeper(Defaults(), func(h *hooked) {
		h.beforeFire = func(segs []store.FireSegment) {
			for _, s := range segs {
				firing += len(s.Keys)
			}
			// The next batch is claimed while this one is fired.
			for s.count(`SELECT count(*) FROM queen.log_timers WHERE claim_token IS NOT NULL`) <= firing {
				require.NoError(t, t.Context().Err())
			}
			cancel()
		}
	})
	require.NoError(t, sweeper.Run(ctx))
	require.Equal(t, 2000-firing, s.pending(), "the fire that was under way is finished")
	require.Zero(t, s.count(`SELECT count(*) FROM queen.log_timers WHERE claim_token IS NOT NULL OR visible_at > now() OR attempts > 0`))
	other, _ := s.sweeper(Defaults())
	require.Equal(t, 2000-firing, s.once(other).Fired)
	s.exactlyOnce(2000)
}

func TestATenantsShareOfAClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.lay(2000, 1)
	s.exec(`INSERT INTO queen.log_timers (tenant_id, queue, timer_key, deliver_at, txn, message_id, payload)
		SELECT '00000000-0000-0000-0000-0000000000aa', 'q', 'k' || g, now(), 't' || g, gen_random_uuid(), '' FROM generate_series(1, 64) g`)
	for share, small := range map[int]bool{1: true, 50: false} {
		cfg := Defaults()
		cfg.FireRatePerTenant, cfg.CycleMaxRows = share, 100
		sweeper, _ := s.sweeper(cfg)
		_, _ = sweeper.cycle(t.Context())
		left := s.count(`SELECT count(*) FROM queen.log_timers WHERE tenant_id = '00000000-0000-0000-0000-0000000000aa'`)
		if small {
			require.Less(t, left, 64, "one that came last is served beside one with a backlog")
		}
	}
}

func TestATenantThatEmptiesItselfIsMeasuredAsEmpty(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.exec(`INSERT INTO queen.kv (namespace, key, value, version) SELECT 'n', 'k' || g, '1', g FROM generate_series(1, 5) g`)
	later := planned("later", "{}")
	later.DelayMs = 3_600_000
	s.schedule("", later)
	sweeper, _ := s.sweeper(Defaults())
	require.Equal(t, 1, s.once(sweeper).Tenants)
	const usage = `SELECT count(*) FROM queen.kv_usage WHERE kv_rows = $1 AND timer_rows = $2`
	require.Equal(t, 1, s.count(usage, 5, 1))
	s.exec(`DELETE FROM queen.kv`)
	s.exec(`DELETE FROM queen.log_timers`)
	s.once(sweeper)
	require.Equal(t, 1, s.count(usage, 0, 0))
}

// series are the values of all series, of a histogram the count.
func series(t *testing.T, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	out := map[string]float64{}
	note := func(name string, labels attribute.Set, value float64) {
		out[strings.TrimSuffix(name+" "+labels.Encoded(attribute.DefaultEncoder()), " ")] = value
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Count))
				}
			}
		}
	}
	return out
}

func TestCountOfWhatIsDueSaysWhereItEnds(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	m, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
	require.NoError(t, err)
	for _, due := range []store.TimersDue{{Due: 2000, Capped: true}, {Due: 3}} {
		m.probed(t.Context(), due)
		got := series(t, reader)
		require.EqualValues(t, due.Due, got["queen.timers.due"])
		require.Equal(t, due.Capped, got["queen.timers.due_capped"] == 1)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	cfg := Defaults()
	cfg.MaxAttempts = 1
	sweeper, _ := s.measuredSweeper(cfg, meters.Meter("test"))

	idle := series(t, reader)
	for _, name := range []string{
		"queen.timers.due", "queen.timers.due_capped", "queen.timers.oldest_late", "queen.timers.claimed", "queen.timers.fired result=fired",
		"queen.timers.fired result=stale", "queen.timers.fired result=duplicate", "queen.timers.fire_failures class=transient",
		"queen.timers.fire_failures class=permanent", "queen.timers.fire_failures class=configuration", "queen.timers.fire_failures class=lost",
		"queen.timers.dlq", "queen.timers.poisoned", "queen.timers.isolations", "queen.timers.fire_lag_tenants_dropped", "queen.sweeper.cycles", "queen.sweeper.probes",
		"queen.sweeper.empty_claims", "queen.sweeper.sleeps band=idle", "queen.sweeper.sleeps band=work", "queen.sweeper.sleeps band=next",
		"queen.sweeper.sleeps band=empty_claim", "queen.sweeper.pressure", "queen.kv.expired_not_pruned", "queen.kv.expiry_lag",
		"queen.kv.pruned", "queen.kv.usage.tenants", "queen.kv.usage.sampled", "queen.sweeper.upkeep outcome=shed,phase=prune",
		"queen.sweeper.upkeep.off phase=rollup", "queen.sweeper.table.size table=kv", "queen.sweeper.table.dead_rows table=log_timers",
		"queen.sweeper.cycle phase=fire", "queen.sweeper.cycle phase=prune", "queen.sweeper.cycle phase=rollup", "queen.sweeper.sleep",
		"queen.sweeper.rows phase=fire", "queen.sweeper.phase_skipped phase=fire", "queen.sweeper.skip_locked phase=prune",
		"queen.timers.fire_lag quantile=0.99,tenant=" + store.DefaultTenant().String(),
	} {
		require.Contains(t, idle, name, "exposed when idle")
		require.Zero(t, idle[name], name)
	}
	require.EqualValues(t, 1, idle["queen.timers.fire_enabled"])

	s.lay(30, 3)
	s.exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at) SELECT 'n', 'k' || g, '1', g, now() - INTERVAL '1 hour' FROM generate_series(1, 5) g`)
	broken := planned("broken", "no zstd")
	broken.PayloadZstd = true
	s.schedule("", broken)
	later := planned("later", "12345")
	later.DelayMs = 3_600_000
	s.schedule("", later)
	s.once(sweeper)
	got := series(t, reader)
	tenant := " tenant=" + store.DefaultTenant().String()
	for name, want := range map[string]float64{
		"queen.timers.claimed": 31, "queen.timers.fired result=fired": 30, "queen.timers.lateness": 30, "queen.timers.poisoned": 1, "queen.sweeper.rows phase=fire": 31, "queen.sweeper.rows phase=prune": 5, "queen.sweeper.rows phase=rollup": 1, "queen.timers.fire_failures class=permanent": 1,
		"queen.timers.dlq": 1, "queen.timers.due": 0, "queen.kv.pruned": 5, "queen.kv.expired_not_pruned": 0,
		"queen.kv.usage.tenants": 1, "queen.timers.usage.rows" + tenant: 1, "queen.timers.usage.bytes" + tenant: 5,
		"queen.kv.usage.rows" + tenant: 0, "queen.kv.usage.ratio" + tenant: 0, "queen.sweeper.upkeep outcome=done,phase=rollup": 1,
	} {
		require.Equal(t, want, got[name], name)
	}
	require.Positive(t, got["queen.sweeper.table.size table=kv"])
	require.Positive(t, got["queen.sweeper.table.size table=log_timers"])
	require.Greater(t, idle["queen.sweeper.upkeep.age phase=rollup"]+10, got["queen.sweeper.upkeep.age phase=rollup"])
}
