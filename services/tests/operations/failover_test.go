package operations_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/harness"
)

const patience = 30 * time.Second

// producer pushes numbered messages into one lane, each until it is answered 201.
type producer struct {
	queue, lane string

	mu       sync.Mutex
	answered int      // messages 0 to answered-1 are stored
	refusals []string // what the others were told, until somebody has read it
	cancel   context.CancelFunc
	done     chan struct{}
}

func produce(t *testing.T, b *harness.Broker, queue, lane string) *producer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &producer{queue: queue, lane: lane, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for ctx.Err() == nil {
			p.push(ctx, b)
		}
	}()
	t.Cleanup(p.stop)
	return p
}

func (p *producer) push(ctx context.Context, b *harness.Broker) {
	n := p.count()
	body := fmt.Appendf(nil, `{"items":[{"queue":%q,"partition":%q,"transactionId":"%d","payload":%d}]}`, p.queue, p.lane, n, n)
	a, err := b.Call(ctx, http.MethodPost, "/api/v1/push", body)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.refusals = append(p.refusals, err.Error())
	case a.Status == http.StatusCreated && !strings.Contains(a.String(), `"failed"`):
		p.answered++
	default:
		p.refusals = append(p.refusals, a.String())
	}
}

func (p *producer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answered
}

// goesOn waits until so many more messages are stored.
func (p *producer) goesOn(t *testing.T, more int) {
	t.Helper()
	from := p.count()
	require.Eventually(t, func() bool { return p.count() >= from+more }, patience, 10*time.Millisecond, "pushes do not go on")
}

// refused waits until a push is refused with a text, which no earlier call has seen.
func (p *producer) refused(t *testing.T, text string) {
	t.Helper()
	var told []string
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, r := range p.refusals {
			if strings.Contains(r, text) {
				p.refusals = p.refusals[i+1:]
				return true
			}
		}
		told = p.refusals
		return false
	}, patience, 10*time.Millisecond, "no push was refused with %q, but with %v", text, told)
}

func (p *producer) stop() {
	p.cancel()
	<-p.done
}

// standby is a second server that has everything of the first, synchronously.
func standby(t *testing.T, stage *harness.Stage) *pglocal.Server {
	t.Helper()
	seed, err := pglocal.MakeScratch("queen-standby-seed-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(seed) })
	data := filepath.Join(seed, "data")
	out, err := exec.CommandContext(t.Context(), stage.Server.Program("pg_basebackup"),
		"--pgdata="+data, "--dbname="+stage.Server.URL("postgres"), "--wal-method=stream", "--checkpoint=fast").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600))
	dir, err := pglocal.MakeScratch("queen-standby-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	server, err := pglocal.Start(t.Context(), pglocal.Options{
		Dir: filepath.Join(dir, pglocal.ScratchData), Fast: true, Seed: data,
		Settings: map[string]string{
			"max_connections":  harness.Value[string](t, stage.DB, "SHOW max_connections"),
			"primary_conninfo": stage.Server.URL("postgres") + "&application_name=second",
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.StopImmediate(context.Background())) })
	stage.DB.Exec(t, "ALTER SYSTEM SET synchronous_standby_names = 'second'")
	stage.DB.Exec(t, "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool {
		return harness.Value[bool](t, stage.DB, "SELECT EXISTS (SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync')")
	}, patience, 20*time.Millisecond, "the standby does not follow")
	return server
}

// workers are one maintainer and one sweeper with a timer to fire.
type workers struct {
	maintainer *harness.Maintainer
	sweeper    *harness.Sweeper
}

// work schedules a timer that is due, keeps it from being fired for as long as the
// server lives, and starts who is to fire it.
func work(t *testing.T, stage *harness.Stage) workers {
	t.Helper()
	a := stage.Post(t, "/api/v1/timers", `{"operations":[{"op":"schedule","queue":"reminders","timerKey":"k","txn":"k","delayMs":1,"payload":"e30="}]}`)
	require.Equal(t, http.StatusOK, a.Status, a)
	holder, err := stage.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = holder.Rollback(context.Background()) })
	tag, err := holder.Exec(t.Context(), "SELECT FROM queen.log_timers WHERE timer_key = 'k' FOR UPDATE")
	require.NoError(t, err)
	require.EqualValues(t, 1, tag.RowsAffected())
	w := workers{harness.StartMaintainer(t, stage.DB), harness.StartSweeper(t, stage.DB)}
	w.leads(t)
	return w
}

// leads waits until the maintainer has made further cycles as the leader.
func (w workers) leads(t *testing.T) {
	t.Helper()
	cycles := func() float64 {
		return w.maintainer.Metric(t, `queen_retention_cycles_total{outcome="idle"}`) +
			w.maintainer.Metric(t, `queen_retention_cycles_total{outcome="swept"}`)
	}
	from := cycles()
	harness.Eventually(t, patience, "somebody leads", func() bool { return cycles() >= from+2 })
}

// goOn requires that both are ready and at work, the same processes as before.
func (w workers) goOn(t *testing.T, b *harness.Broker) {
	t.Helper()
	w.leads(t)
	require.EqualValues(t, 1, w.maintainer.Metric(t, "queen_retention_leader"))
	fired := b.Pop(t, "reminders", "batch=1&wait=true&timeout=20000")
	require.Equal(t, []string{"k"}, fired.IDs())
	harness.Eventually(t, patience, "maintainer and sweeper are ready", func() bool {
		maintainer, _ := w.maintainer.Ready(t)
		sweeper, _ := w.sweeper.Ready(t)
		return maintainer && sweeper
	})
}

// TestFailover makes the primary read-only and writable again, and then moves the
// address to a standby: producers are refused with words meanwhile, nothing is started
// again, nothing that was answered is missing, and the order holds. A maintainer leads
// on the new primary, and a timer that was scheduled on the old one fires.
func TestFailover(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Server: true, Owner: true, Brokers: 1, Proxy: true, Env: []string{"QUEEN_PUSH_DEADLINE_MS=500"}})
	if _, err := exec.LookPath(stage.Server.Program("pg_basebackup")); err != nil {
		t.Skip("these server binaries come without pg_basebackup")
	}
	second := standby(t, stage)
	p := produce(t, stage.Broker, "orders", "lane")
	p.goesOn(t, 20)
	w := work(t, stage)

	readOnly(t, stage.DB, true)
	p.refused(t, "read-only")
	readOnly(t, stage.DB, false)
	p.goesOn(t, 20)
	w.leads(t)

	require.NoError(t, stage.Server.StopImmediate(t.Context()))
	stage.Proxy.Move(net.JoinHostPort(second.Host(), strconv.Itoa(second.Port())))
	promote(t, second)
	p.goesOn(t, 20)
	p.stop()
	w.goOn(t, stage.Broker)

	want := p.count()
	var got []string
	for len(got) < want {
		popped := stage.Pop(t, "orders", "batch=500&consumerGroup=g&partitions=1&wait=true&timeout=5000")
		require.NotEmpty(t, popped.Messages, "only %d of %d are there", len(got), want)
		got = append(got, popped.IDs()...)
		stage.AckOK(t, "g", popped.Acks("completed")...)
	}
	for n, id := range got[:want] {
		require.Equal(t, strconv.Itoa(n), id)
	}
}

// readOnly has a server refuse writes, or take them again.
func readOnly(t *testing.T, db *harness.Database, on bool) {
	t.Helper()
	statement := "ALTER SYSTEM RESET default_transaction_read_only"
	if on {
		statement = "ALTER SYSTEM SET default_transaction_read_only = on"
	}
	db.Exec(t, statement)
	db.Exec(t, "SELECT pg_reload_conf()")
}

func promote(t *testing.T, server *pglocal.Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var done bool
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_promote(true, 30)").Scan(&done))
	require.True(t, done)
	// Nobody follows it: it must not wait for somebody who does.
	_, err = conn.Exec(t.Context(), "ALTER SYSTEM RESET synchronous_standby_names")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT pg_reload_conf()")
	require.NoError(t, err)
}
