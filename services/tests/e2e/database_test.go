package e2e_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	outageTime = 10 * time.Second
	// longOutage is beyond requestBound: every request has to be answered in it.
	longOutage = 40 * time.Second

	// outageRecovery is how soon after an outage pushes have to be stored again:
	// a connection attempt that was under way takes 5 s to be given up.
	outageRecovery = 10 * time.Second

	// requestBound is the longest that a request may take whatever PostgreSQL
	// does: 10 s for admission, 10 s for a connection, 2 s for the statement here
	// and 3 s to cancel it.
	requestBound = 30 * time.Second
)

// TestDatabaseFailsForAWhile puts brokers under load, lets PostgreSQL fail in
// one way for a while, and checks that nothing acknowledged is lost, that no
// request hangs, and that brokers recover and leave nothing behind.
func TestDatabaseFailsForAWhile(t *testing.T) {
	t.Parallel()
	outage := outageTime
	if harness.Long() {
		outage = longOutage
	}
	for name, c := range map[string]struct {
		fail, heal func(t *testing.T, s *harness.Stage)
	}{
		"it only reads": {setReadOnly, setReadWrite},
		"it answers nothing": {
			func(_ *testing.T, s *harness.Stage) { s.Proxy.Stall() },
			func(_ *testing.T, s *harness.Stage) { s.Proxy.Heal() },
		},
		"it resets connections": {
			func(_ *testing.T, s *harness.Stage) { s.Proxy.Cut() },
			func(_ *testing.T, s *harness.Stage) { s.Proxy.Heal() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.StartSetup(t, harness.Setup{Proxy: true, Env: []string{"QUEEN_STMT_TIMEOUT_MS=2000", "QUEEN_PUSH_DEADLINE_MS=3000"}})
			rng, _ := seeded(t)
			before := footprints(t, s.Broker)
			x := startLoad(t, s.Broker, queueName(t), rng, loadOptions{pushers: 6, readers: 6, pushSize: 4, habits: defaultHabits(), limit: 3 * time.Minute})
			x.advance(100, progressLimit)

			c.fail(t, s)
			select {
			case <-t.Context().Done():
			case <-time.After(outage): // what is tested is an outage of that length
			}
			stored := x.l.pushedCount()
			c.heal(t, s)
			took := x.advance(50, outageRecovery)
			t.Logf("%d pushes before, 50 more %s after the outage, slowest request %s", stored, took.Round(time.Millisecond), s.Slowest())
			x.finish()
			require.Less(t, s.Slowest(), requestBound, "a request hung")
			requireNoLeak(t, s.Broker, before)
		})
	}
}

// setReadOnly makes the server of the database behave like a demoted primary:
// new sessions only read, and there are only new ones.
func setReadOnly(t *testing.T, s *harness.Stage) {
	t.Helper()
	alterDatabase(t, s.DB, "SET default_transaction_read_only = on")
	s.DB.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'queen-broker'`)
}

// setReadWrite promotes it again. Sessions that only read remain, as they do on
// a server that was demoted: brokers must not keep them.
func setReadWrite(t *testing.T, s *harness.Stage) {
	t.Helper()
	alterDatabase(t, s.DB, "RESET default_transaction_read_only")
}

func alterDatabase(t *testing.T, db *harness.Database, change string) {
	t.Helper()
	tx, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadWrite})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "ALTER DATABASE "+pgx.Identifier{db.Name}.Sanitize()+" "+change)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
}

// TestBootOutlivesARestartOfTheDatabase cuts the connection on which a starting
// broker looks at the schema.
func TestBootOutlivesARestartOfTheDatabase(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
	s.Terminate(t)
	lost := s.Proxy.LoseAnswer("queen.schema_files")
	s.Restart(t)
	answerLost(t, lost)
	s.PushEach(t, queueName(t), "", 1)
}

// TestRule17ConnectionsNoticeADeadPeer looks at the timers of the kernel: both
// ends of every session probe a silent peer after 5 s.
func TestRule17ConnectionsNoticeADeadPeer(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc/net/tcp")
	}
	b := harness.StartOne(t)
	b.PushEach(t, queueName(t), "", 1)
	harness.Eventually(t, 10*time.Second, "both ends of every idle session probe", func() bool {
		sessions := idleSessions(t, b)
		probing := 0
		for _, s := range sockets(t) {
			if (sessions[s.remote] == s.local || sessions[s.local] == s.remote) && s.timer == keepaliveTimer && s.due <= 5*time.Second {
				probing++
			}
		}
		return len(sessions) > 0 && probing == 2*len(sessions)
	})
}

// idleSessions maps the client's port of each idle session of the broker to the
// server's.
func idleSessions(t *testing.T, b *harness.Broker) map[string]string {
	t.Helper()
	rows, err := b.DB.Pool.Query(t.Context(), `SELECT client_port::text, inet_server_port()::text FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'queen-broker' AND state = 'idle'`)
	require.NoError(t, err)
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var client, server string
		require.NoError(t, rows.Scan(&client, &server))
		out[client] = server
	}
	require.NoError(t, rows.Err())
	return out
}

// socket is one row of /proc/net/tcp.
type socket struct {
	local, remote string // ports
	timer         string
	due           time.Duration
}

const (
	keepaliveTimer = "02"
	established    = "01"
	ticks          = 100 // of a second, in which the kernel shows times
)

// sockets lists the established connections of this machine.
func sockets(t *testing.T) []socket {
	t.Helper()
	f, err := os.Open("/proc/net/tcp")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var out []socket
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[3] != established {
			continue
		}
		timer, due, _ := strings.Cut(fields[5], ":")
		n, err := strconv.ParseInt(due, 16, 64)
		require.NoError(t, err)
		out = append(out, socket{hexPort(t, fields[1]), hexPort(t, fields[2]), timer, time.Duration(n) * time.Second / ticks})
	}
	return out
}

func hexPort(t *testing.T, address string) string {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	require.NoError(t, err)
	raw, err := hex.DecodeString(text)
	require.NoError(t, err)
	return fmt.Sprint(int(raw[0])<<8 | int(raw[1]))
}

// TestRule17AStatementEndsWithItsClient ends the client of a statement that waits
// for a lock, with a statement deadline that would not end it for a minute.
func TestRule17AStatementEndsWithItsClient(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *harness.Stage){
		"the broker is killed":    func(s *harness.Stage) { s.Kill() },
		"the connection is reset": func(s *harness.Stage) { s.Proxy.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true, Env: []string{"QUEEN_STMT_TIMEOUT_MS=60000"}})
			waiting := stuckPop(t, s.Broker)
			end(s)
			harness.Eventually(t, 10*time.Second, "the server notices", func() bool { return waitingStatements(t, s.Broker) == 0 })
			waiting.cancel()
		})
	}
}

// TestRule17TheServerEndsAStatementByItself keeps the broker from telling the
// server to cancel: the server's own limit is 5 s later.
func TestRule17TheServerEndsAStatementByItself(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true, Env: []string{"QUEEN_STMT_TIMEOUT_MS=1000"}})
	waiting := stuckPop(t, s.Broker)
	s.Proxy.Stall()
	harness.Eventually(t, 15*time.Second, "the server cancels", func() bool { return waitingStatements(t, s.Broker) == 0 })
	s.Proxy.Heal()
	waiting.cancel()
}

// stuckRequest is a request whose statement waits for a lock of the test.
type stuckRequest struct{ cancel context.CancelFunc }

// stuckPop sends a pop whose claim has to wait.
func stuckPop(t *testing.T, b *harness.Broker) stuckRequest {
	t.Helper()
	q := queueName(t)
	b.PushEach(t, q, "p", 1)
	lockTable(t, b, "log_consumers")
	ctx, cancel := context.WithCancel(t.Context())
	w := park(ctx, b, harness.PopPartitionPath(q, "p", ""))
	t.Cleanup(func() { cancel(); <-w.done })
	harness.Eventually(t, 10*time.Second, "the claim waits", func() bool { return waitingStatements(t, b) > 0 })
	return stuckRequest{cancel}
}
