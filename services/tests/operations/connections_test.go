package operations_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	crowdSize = 20 // producers at once
	poolSize  = 4  // connections of the broker
)

// crowd are producers of a lane each.
type crowd []*producer

func gather(t *testing.T, b *harness.Broker) crowd {
	t.Helper()
	c := make(crowd, crowdSize)
	for i := range c {
		c[i] = produce(t, b, "crowd", strconv.Itoa(i))
	}
	return c
}

// refused waits until a push of each has been refused so many more times with a text.
func (c crowd) refused(t *testing.T, text string, times int) {
	t.Helper()
	for _, p := range c {
		for range times {
			p.refused(t, text)
		}
	}
}

// goesOn waits until a message more of each is stored.
func (c crowd) goesOn(t *testing.T) {
	t.Helper()
	for _, p := range c {
		p.goesOn(t, 1)
	}
}

func (c crowd) stop() {
	for _, p := range c {
		p.stop()
	}
}

// TestAReadOnlyServerIsNotReconnectedForEveryPush: the pool is renewed once a second.
func TestAReadOnlyServerIsNotReconnectedForEveryPush(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Server: true, Brokers: 1, Proxy: true, Env: []string{
		"QUEEN_PUSH_DEADLINE_MS=200", "DB_POOL_SIZE=" + strconv.Itoa(poolSize),
	}})
	producers := gather(t, stage.Broker)
	producers.goesOn(t)
	readOnly(t, stage.DB, true)
	producers.refused(t, "read-only", 1)

	began, before := time.Now(), stage.Proxy.Taken()
	producers.refused(t, "read-only", 5)
	most := poolSize * (2 + int(time.Since(began)/time.Second))
	require.LessOrEqual(t, stage.Proxy.Taken()-before, most, "within %s", time.Since(began))

	readOnly(t, stage.DB, false)
	producers.goesOn(t)
}

// TestAServerWithoutConnectionsIsNotStormed and what its clients are told: a broker that
// gets no connection asks for one now and then, and goes on by itself.
func TestAServerWithoutConnectionsIsNotStormed(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Server: true, Brokers: 1, Proxy: true, MaxConnections: 40, Env: []string{
		"QUEEN_PUSH_DEADLINE_MS=200", "DB_POOL_SIZE=" + strconv.Itoa(poolSize),
	}})
	stage.Proxy.Cut()
	release := occupy(t, stage)
	stage.Proxy.Heal()
	producers := gather(t, stage.Broker)
	producers.refused(t, "too many clients already", 1)

	began, before := time.Now(), stage.Proxy.Taken()
	producers.refused(t, "too many clients already", 5)
	a, err := stage.Call(t.Context(), http.MethodGet, harness.PopPath("crowd", "consumerGroup=g"), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusInternalServerError, a.Status, a)
	require.Equal(t, "pool", a.ErrorText(t))
	a = stage.Get(t, "/api/v1/kv/carts/one")
	require.Equal(t, http.StatusServiceUnavailable, a.Status, a)
	require.Equal(t, "1", a.Header.Get("Retry-After"))
	// Two pools, each with pauses of half a second to a second, after eight short ones.
	most := 2 * (8 + 2*int(time.Since(began)/time.Second+1))
	require.LessOrEqual(t, stage.Proxy.Taken()-before, most, "within %s", time.Since(began))

	release()
	producers.goesOn(t)
	producers.stop()
	require.Equal(t, http.StatusOK, stage.Get(t, "/api/v1/kv/carts/one").Status)
}

// occupy takes all connections that a server has.
func occupy(t *testing.T, stage *harness.Stage) (release func()) {
	t.Helper()
	var held []*pgx.Conn
	for {
		conn, err := pgx.Connect(t.Context(), stage.Server.URL("postgres"))
		if err != nil {
			require.ErrorContains(t, err, "53300")
			break
		}
		held = append(held, conn)
	}
	return func() {
		for _, conn := range held {
			require.NoError(t, conn.Close(context.WithoutCancel(t.Context())))
		}
	}
}
