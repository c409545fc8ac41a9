package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/services/broker/internal/config"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// bundle is a broker under test.
type bundle struct {
	*App
	t      *testing.T
	client *http.Client
	cancel context.CancelFunc
	done   chan error
}

func configFor(pg pgdb.Config) *config.Config {
	return &config.Config{
		Server: config.Server{
			BindAddr: "127.0.0.1", ServerID: "test", MaxBodyBytes: 1 << 20, MaxInflightBytes: 4 << 20,
			ApplySchema: true, BootDBWait: 30 * time.Second, ShutdownTimeout: 20 * time.Second,
		},
		Ops:      opsserver.Config{Addr: "127.0.0.1:0"},
		Postgres: pg,
		Engine:   config.Engine{PushDeadline: 10 * time.Second, ZstdLevel: 3, PoolReserve: 2},
		Flow:     config.Flow{DefaultTimeout: 30 * time.Second, SubscriptionMode: "all", PendingGate: true},
	}
}

// launch starts a broker in the background.
func launch(t *testing.T, cfg *config.Config) *bundle {
	t.Helper()
	a, err := New(t.Context(), cfg, logtest.New(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b := &bundle{App: a, t: t, client: &http.Client{Transport: &http.Transport{}}, cancel: cancel, done: make(chan error, 1)}
	go func() { b.done <- a.Run(ctx) }()
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		cancel()
	})
	return b
}

// serve launches a broker and waits until it serves.
func serve(t *testing.T, cfg *config.Config) *bundle {
	t.Helper()
	b := launch(t, cfg)
	select {
	case <-b.started:
	case err := <-b.done:
		t.Fatalf("the broker ended: %v", err)
	}
	return b
}

func (b *bundle) stop() error {
	b.client.CloseIdleConnections()
	b.cancel()
	return <-b.done
}

func (b *bundle) call(method, path, body string) (int, string) {
	b.t.Helper()
	return b.get(method, "http://"+b.server.Addr()+path, body)
}

func (b *bundle) operations(path string) int {
	b.t.Helper()
	code, _ := b.get(http.MethodGet, "http://"+b.ops.Addr()+path, "")
	return code
}

func (b *bundle) get(method, url, body string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, url, strings.NewReader(body))
	require.NoError(b.t, err)
	res, err := b.client.Do(req)
	require.NoError(b.t, err)
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	return res.StatusCode, string(got)
}

func TestBrokerServesOnAnEmptyDatabaseAndStops(t *testing.T) {
	t.Parallel()
	b := serve(t, configFor(pgtest.Empty(t)))
	code, body := b.call("POST", "/api/v1/push", `{"items":[{"queue":"a.b","partition":"p","payload":{"n":1}}]}`)
	require.Equal(t, http.StatusCreated, code, body)
	code, body = b.call("GET", "/api/v1/pop/queue/a.b", "")
	require.Equal(t, http.StatusOK, code, body)
	var popped struct {
		LeaseID  string
		Messages []struct {
			TransactionID, PartitionID string
			Data                       json.RawMessage
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &popped))
	require.Len(t, popped.Messages, 1)
	require.Equal(t, `{"n":1}`, string(popped.Messages[0].Data))
	ack, err := json.Marshal(map[string]string{
		"transactionId": popped.Messages[0].TransactionID, "partitionId": popped.Messages[0].PartitionID, "leaseId": popped.LeaseID,
	})
	require.NoError(t, err)
	code, body = b.call("POST", "/api/v1/ack", string(ack))
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, `"success":true`)
	code, _ = b.call("GET", "/api/v1/pop/queue/a.b", "")
	require.Equal(t, http.StatusNoContent, code)

	for _, path := range []string{"/live", "/ready", "/health"} {
		require.Equal(t, http.StatusOK, b.operations(path), path)
	}
	_, metrics := b.call("GET", "/metrics/prometheus", "")
	for _, family := range []string{
		"queen_db_pool_size", "queen_uptime_seconds", "http_server_request_duration_seconds_count", "go_goroutines",
	} {
		require.Contains(t, metrics, "\n"+family, "families must be there")
	}
	require.NoError(t, b.stop())
}

func TestStopTurnsUnreadyAndAnswersParkedPops(t *testing.T) {
	t.Parallel()
	b := serve(t, configFor(pgtest.NewConfig(t)))
	const pops = 5
	var parked sync.WaitGroup
	for range pops {
		parked.Go(func() {
			code, _ := b.call("GET", "/api/v1/pop/queue/quiet?wait=true&timeout=60000", "")
			if code != http.StatusNoContent {
				t.Errorf("a parked pop was answered %d", code)
			}
		})
	}
	require.Eventually(t, func() bool {
		_, metrics := b.get(http.MethodGet, "http://"+b.ops.Addr()+"/metrics", "")
		return strings.Contains(metrics, "http_server_active_requests 5\n")
	}, 10*time.Second, 5*time.Millisecond)
	b.cancel()
	parked.Wait()
	require.ErrorIs(t, b.ready(), errStopping)
	require.NoError(t, <-b.done)
}

func TestBrokerServesWhileItsStopIsDelayed(t *testing.T) {
	t.Parallel()
	const delay = 3 * time.Second
	cfg := configFor(pgtest.NewConfig(t))
	cfg.Server.ShutdownDelay = delay
	b := serve(t, cfg)
	popped := make(chan string, 1)
	go func() {
		_, body := b.call("GET", "/api/v1/pop/queue/q?wait=true&timeout=60000", "")
		popped <- body
	}()
	asked := time.Now()
	b.cancel()
	require.Eventually(t, func() bool { return errors.Is(b.ready(), errStopping) }, delay/2, time.Millisecond)
	require.Equal(t, http.StatusServiceUnavailable, b.operations("/ready"))
	require.Equal(t, http.StatusOK, b.operations("/live"))
	code, body := b.call("GET", "/health", "")
	require.Equal(t, http.StatusOK, code, body)
	code, body = b.call("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":"late"}]}`)
	require.Equal(t, http.StatusCreated, code, body)
	require.Contains(t, <-popped, `"late"`)

	code, _ = b.call("GET", "/api/v1/pop/queue/quiet?wait=true&timeout=60000", "")
	require.Equal(t, http.StatusNoContent, code)
	require.GreaterOrEqual(t, time.Since(asked), delay)
	require.NoError(t, <-b.done)
}

func TestASchemaThatNoLongerAdmitsTheBrokerMakesItUnready(t *testing.T) {
	t.Parallel()
	b := serve(t, configFor(pgtest.NewConfig(t)))
	record := func(generation int) {
		require.NoError(t, b.db.Do(t.Context(), "age", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `UPDATE queen.schema_files SET generation = $1, min_compatible = $1`, generation)
			return err
		}))
		require.NoError(t, b.watchSchema(t.Context()))
	}
	require.NoError(t, b.ready())
	record(schema.Generation + 1)
	require.ErrorIs(t, b.ready(), schema.ErrTooNew)
	require.Equal(t, http.StatusServiceUnavailable, b.operations("/ready"))
	record(schema.Generation)
	require.NoError(t, b.ready())

	record(schema.Generation + 1)
	b.db.Close()
	require.NoError(t, b.watchSchema(t.Context()))
	require.ErrorIs(t, b.ready(), schema.ErrTooNew, "a database that is away changes nothing")
	require.NoError(t, b.stop())
}

func TestLosingTheDatabaseShowsInHealthOnly(t *testing.T) {
	t.Parallel()
	b := serve(t, configFor(pgtest.NewConfig(t)))
	b.db.Close()
	require.Equal(t, http.StatusServiceUnavailable, b.operations("/health"))
	require.Equal(t, http.StatusOK, b.operations("/ready"))
	code, body := b.call("GET", "/health", "")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, `"status":"unhealthy","database":"disconnected"`)
	code, body = b.call("GET", "/api/v1/pop/queue/q", "")
	require.Equal(t, http.StatusInternalServerError, code)
	require.Equal(t, `{"error":"pool"}`, body)
	require.NoError(t, b.stop())
}

func TestBootGivesUpOnAnUnreachableDatabase(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg := configFor(pgdb.Config{
		Host: "127.0.0.1", Port: ln.Addr().(*net.TCPAddr).Port, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1000,
	})
	require.NoError(t, ln.Close())
	cfg.Server.BootDBWait = 300 * time.Millisecond
	b := launch(t, cfg)
	err = <-b.done
	require.ErrorIs(t, err, pgdb.ErrPool)
	require.ErrorContains(t, err, "start database: PostgreSQL at 127.0.0.1:")
	require.ErrorContains(t, err, "did not answer within 300ms (PG_URL, or PG_HOST and PG_PORT; QUEEN_BOOT_DB_WAIT_MS")
}

func TestBootIsInterruptedWhileItWaits(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgdb.Config{Host: "127.0.0.1", Port: 1, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1000})
	b := launch(t, cfg)
	b.cancel()
	require.NoError(t, <-b.done)
}

func TestBrokerThatAppliesNothingWaitsForTheSchema(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgtest.Empty(t))
	cfg.Server.ApplySchema = false
	b := launch(t, cfg)
	require.ErrorIs(t, b.ready(), errStarting)
	migrator, err := New(t.Context(), cfg, logtest.New(t))
	require.NoError(t, err)
	require.NoError(t, migrator.Migrate(t.Context()))
	select {
	case <-b.started:
	case err := <-b.done:
		t.Fatalf("the broker ended: %v", err)
	}
	require.NoError(t, b.stop())
}

func TestBrokerThatAppliesNothingGivesUpWithoutASchema(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgtest.Empty(t))
	cfg.Server.ApplySchema, cfg.Server.BootDBWait = false, 200*time.Millisecond
	err := <-launch(t, cfg).done
	require.ErrorIs(t, err, schema.ErrNotReady)
	require.ErrorContains(t, err, "start schema: check schema (QUEEN_APPLY_SCHEMA is off; `broker migrate` applies it)")
}

func TestTakenPortEndsTheBoot(t *testing.T) {
	t.Parallel()
	first := serve(t, configFor(pgtest.NewConfig(t)))
	cfg := configFor(first.cfg.Postgres)
	cfg.Server.Port = first.port()
	err := <-launch(t, cfg).done
	require.ErrorContains(t, err, "start client listener: listen on 127.0.0.1:")
	require.ErrorContains(t, err, "change PORT or QUEEN_BIND_ADDR")
	require.NoError(t, first.stop())
}

func (b *bundle) port() int {
	addr, err := net.ResolveTCPAddr("tcp", b.server.Addr())
	require.NoError(b.t, err)
	return addr.Port
}

func TestStopDoesNotWaitForeverForAStatement(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgtest.NewConfig(t))
	cfg.Server.ShutdownTimeout = 100 * time.Millisecond
	b := serve(t, cfg)
	held, release := make(chan struct{}), make(chan struct{})
	finished := make(chan error, 1)
	go func() {
		finished <- b.db.Do(context.WithoutCancel(t.Context()), "hold", func(context.Context, *pgx.Conn) error {
			close(held)
			<-release
			return nil
		})
	}()
	<-held
	err := b.stop()
	close(release)
	require.NoError(t, <-finished)
	require.ErrorIs(t, err, lifecycle.ErrStopTimeout)
	require.ErrorContains(t, err, "stop connection pool: close the pool: stop deadline passed")
}
