package retention_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	// leaderInterval is the cadence of the replicas whose leader fails.
	leaderInterval = 2 * time.Second
	// failoverSlack is what a busy machine may add to a failover.
	failoverSlack = 1500 * time.Millisecond
	// silentLimit is how soon a leader is replaced that neither works nor ends.
	silentLimit = 20 * time.Second
)

// trio is three maintainers on one database that always has something for them
// to do. Each has a role and a way to the database of its own.
type trio struct {
	*cell
	members []*replica
	stop    func() // ends the pushing
}

type replica struct {
	*harness.Maintainer
	role  string
	proxy *harness.Proxy
}

// startTrio runs them on a server of their own, whose log holds every statement
// of theirs.
func startTrio(t *testing.T) *trio {
	t.Helper()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Server: true})
	x := &trio{cell: &cell{Broker: stage.Broker, queue: queueName(t), sweep: new(sync.Mutex)}}
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":1}`)
	traceChanges(t, x.DB)
	slowSteps(t, x.DB, 40*time.Millisecond) // a cycle is always under way
	x.DB.Exec(t, `ALTER SYSTEM SET log_line_prefix = '%p %u '`)
	x.DB.Exec(t, `ALTER SYSTEM SET log_disconnections = on`)
	x.DB.Exec(t, `SELECT pg_reload_conf()`)
	for i := range 3 {
		role := fmt.Sprintf("replica%d", i)
		x.DB.Exec(t, `CREATE ROLE `+role+` SUPERUSER LOGIN`)
		x.DB.Exec(t, `ALTER ROLE `+role+` SET log_statement = 'all'`)
		proxy := harness.NewProxy(t, x.DB)
		host, port, _ := strings.Cut(proxy.Addr(), ":")
		m := harness.StartMaintainer(t, x.DB, "PG_HOST="+host, "PG_PORT="+port, "PG_USER="+role,
			fmt.Sprintf("RETENTION_INTERVAL=%d", leaderInterval.Milliseconds()))
		x.members = append(x.members, &replica{m, role, proxy})
	}
	x.feed(t)
	return x
}

// feed pushes to many lanes until stop, so that every cycle has many steps.
func (x *trio) feed(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			items := make([]harness.Item, 12)
			for i := range items {
				items[i] = harness.Item{Queue: x.queue, Partition: fmt.Sprintf("lane-%02d", i), Payload: n}
			}
			if _, err := x.TryPush(ctx, items...); err != nil && ctx.Err() == nil {
				t.Errorf("push: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	x.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(x.stop)
}

// leader waits until a replica is in a cycle, and answers it and its session.
func (x *trio) leader(t *testing.T) (*replica, int) {
	t.Helper()
	var session int
	var role string
	harness.Eventually(t, 10*time.Second, "a replica leads", func() bool {
		err := x.DB.Pool.QueryRow(t.Context(), `SELECT a.pid, a.usename FROM pg_stat_activity AS a WHERE a.pid IN (`+holder+`)`).Scan(&session, &role)
		return err == nil
	})
	for _, r := range x.members {
		if r.role == role {
			return r, session
		}
	}
	require.Fail(t, "a stranger leads", role)
	return nil, 0
}

// leads tells whether a session has the lock.
func (x *trio) leads(t *testing.T, session int) bool {
	t.Helper()
	return harness.Value[bool](t, x.DB, `SELECT EXISTS (SELECT FROM (`+holder+`) AS h WHERE h.pid = $1)`, session)
}

// successor waits until another session than the one that failed has the lock,
// and answers how long that took since then.
func (x *trio) successor(t *testing.T, failed int, since time.Time, limit time.Duration) time.Duration {
	t.Helper()
	harness.Eventually(t, limit+10*time.Second, "another session leads", func() bool {
		return harness.Value[bool](t, x.DB, `SELECT EXISTS (SELECT FROM (`+holder+`) AS h WHERE h.pid <> $1)`, failed)
	})
	return time.Since(since)
}

// judge ends everything and requires that no two cycles ran at once, by the lock
// and by the server's log, and that all rows are as they should be.
func (x *trio) judge(t *testing.T) {
	t.Helper()
	x.stop()
	for _, r := range x.members {
		r.Kill()
	}
	harness.Eventually(t, 10*time.Second, "their sessions have ended", func() bool {
		return harness.Value[int](t, x.DB, `SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'replica%'`) == 0
	})
	requireOneLeader(t, x.DB)
	requireSound(t, x.DB)
	text, err := os.ReadFile(harness.Value[string](t, x.DB, `SHOW data_directory`) + ".log")
	require.NoError(t, err)
	require.NotContains(t, string(text), "deadlock detected")
	requireNoOverlap(t, string(text))
}

var (
	statementLine = regexp.MustCompile(`^(\d+) replica\d LOG:  (?:execute [^:]*|statement): (.*)`)
	endLine       = regexp.MustCompile(`^(\d+) replica\d LOG:  disconnection:`)
	stepCall      = regexp.MustCompile(`queen\.log_(retention|txns_purge|evict_max_wait|partition_cleanup)_step_v1`)
)

// requireNoOverlap reads the statements of all replicas in the order in which the
// server began them: between two steps of a session, unless it unlocked in
// between, no other session may have made one.
func requireNoOverlap(t *testing.T, log string) {
	t.Helper()
	inCycle, steps := "", 0
	for line := range strings.Lines(strings.ReplaceAll(log, "\n\t", " ")) { // a statement of several lines
		if m := endLine.FindStringSubmatch(line); m != nil && m[1] == inCycle {
			inCycle = ""
		}
		m := statementLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		switch session, sql := m[1], m[2]; {
		case stepCall.MatchString(sql):
			require.Contains(t, []string{"", session}, inCycle, "session %s steps while another is in its cycle", session)
			inCycle = session
			steps++
		case session == inCycle && strings.Contains(sql, "pg_advisory_unlock"):
			inCycle = ""
		}
	}
	require.Positive(t, steps, "the log shows the steps")
}

// TestLeaderIsReplaced lets the leader fail in the middle of a cycle in each way
// there is, twice.
func TestLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	quick := leaderInterval + failoverSlack
	for name, c := range map[string]struct {
		limit time.Duration
		fail  func(t *testing.T, x *trio, leader *replica, session int)
		heal  func(t *testing.T, leader *replica)
	}{
		"killed": {quick,
			func(_ *testing.T, _ *trio, leader *replica, _ int) { leader.Kill() },
			func(t *testing.T, leader *replica) { leader.Restart(t) }},
		"its session is ended": {quick,
			func(t *testing.T, x *trio, _ *replica, session int) {
				x.DB.Exec(t, `SELECT pg_terminate_backend($1)`, session)
			},
			func(*testing.T, *replica) {}},
		"its connection is reset": {quick,
			func(_ *testing.T, _ *trio, leader *replica, _ int) { leader.proxy.Cut() },
			func(_ *testing.T, leader *replica) { leader.proxy.Heal() }},
		"stopped": {silentLimit,
			func(t *testing.T, _ *trio, leader *replica, _ int) { leader.Pause(t) },
			func(t *testing.T, leader *replica) { leader.Resume(t) }},
		"its packets vanish": {silentLimit,
			func(_ *testing.T, _ *trio, leader *replica, _ int) { leader.proxy.Stall() },
			func(_ *testing.T, leader *replica) { leader.proxy.Heal() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := startTrio(t)
			for range 2 {
				leader, session := x.leader(t)
				since := time.Now()
				c.fail(t, x, leader, session)
				for c.limit == silentLimit && !x.leads(t, session) { // its cycle was over
					c.heal(t, leader)
					leader, session = x.leader(t)
					since = time.Now()
					c.fail(t, x, leader, session)
				}
				took := x.successor(t, session, since, c.limit)
				t.Logf("%s was replaced after %s", leader.role, took)
				require.Less(t, took, c.limit)
				c.heal(t, leader)
				x.advance(t, 3)
			}
			x.requireLeads(t, x.members[0], x.members[1:])
			x.judge(t)
		})
	}
}

// advance waits until n more segments are gone from each lane.
func (x *trio) advance(t *testing.T, n int) {
	t.Helper()
	least := func() int64 {
		return harness.Value[int64](t, x.DB, `SELECT COALESCE(min(log_start), 0) FROM queen.log_partitions`)
	}
	before := least()
	harness.Eventually(t, 30*time.Second, "sweeping goes on", func() bool { return least() >= before+int64(n) })
}

// requireLeads ends the others: the one that is left must be able to lead.
func (x *trio) requireLeads(t *testing.T, one *replica, others []*replica) {
	t.Helper()
	for _, r := range others {
		r.Kill()
	}
	harness.Eventually(t, 15*time.Second, "the last one leads", func() bool {
		_, session := x.leader(t)
		return harness.Value[bool](t, x.DB, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND pid = $2)`, one.role, session)
	})
	x.advance(t, 3)
}

// TestReplicasShareTheWorkWithoutDoingItTwice sweeps a backlog with three at once.
func TestReplicasShareTheWorkWithoutDoingItTwice(t *testing.T) {
	t.Parallel()
	x := startTrio(t)
	x.advance(t, 20)
	x.judge(t)
}

// TestLeaderThatLosesItsSessionStopsAtOnce takes the session away in the middle
// of a cycle whose only other session is the test's: not one more step is made
// before the next cycle.
func TestLeaderThatLosesItsSessionStopsAtOnce(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	for i := range 60 {
		x.PushEach(t, x.queue, fmt.Sprintf("lane-%02d", i), 1)
	}
	ageAll(t, x.DB, x.queue)
	traceChanges(t, x.DB)
	slowSteps(t, x.DB, 50*time.Millisecond)
	m := harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=2000", "QUEEN_LOG_JSON=true")
	var session int
	harness.Eventually(t, 10*time.Second, "the cycle is under way", func() bool {
		return len(changes(t, x.DB, "DELETE log_segments")) > 3 &&
			x.DB.Pool.QueryRow(t.Context(), holder).Scan(&session) == nil
	})
	release := holdNext(t, x.DB, session)
	swept := len(changes(t, x.DB, "DELETE log_segments"))
	select { // a second cycle is due and skipped
	case <-t.Context().Done():
	case <-time.After(3 * time.Second):
	}
	require.Len(t, changes(t, x.DB, "DELETE log_segments"), swept)
	release()
	harness.Eventually(t, 20*time.Second, "it leads again", func() bool { return len(changes(t, x.DB, "DELETE log_segments")) == 60 })
	requireOneLeader(t, x.DB)
	requireSound(t, x.DB)
	require.NotEmpty(t, append(logged(t, m)["WARN"], logged(t, m)["ERROR"]...), "the log tells")
}

// holdNext ends a session and takes the lock that it held.
func holdNext(t *testing.T, db *harness.Database, session int) (release func()) {
	t.Helper()
	db.Exec(t, `SELECT pg_terminate_backend($1, 5000)`, session)
	return hold(t, db)
}
