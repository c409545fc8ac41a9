package mesh_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/hints/hintstest"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/services/sweeper/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, hintstest.ProbesUnderWay()) }

const patience = 20 * time.Second

// cycle notes what it is told.
type cycle struct {
	due  chan time.Time
	kick chan struct{}
}

func (c cycle) Due(at time.Time) { c.due <- at }
func (c cycle) Kick()            { c.kick <- struct{}{} }

func poolConfig(port, peer int) hints.Config {
	return hints.Config{
		Enabled: true, Peers: fmt.Sprintf("127.0.0.1:%d", peer), Port: port, BindAddr: "127.0.0.1",
		Heartbeat: 200 * time.Millisecond, DeadThreshold: time.Second,
	}
}

func installation(context.Context) (uuid.UUID, error) { return uuid.UUID{9}, nil }

func await[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	return v
}

func TestBrokerAndSweeperTellEachOther(t *testing.T) {
	t.Parallel()
	log := logtest.New(t)
	received := make(chan hints.Hint, 10)
	brokerPort, sweeperPort := hintstest.FreePort(t), hintstest.FreePort(t)
	broker, err := hints.New(poolConfig(brokerPort, sweeperPort), hints.Deps{
		ID: "b", Role: hints.Broker, Installation: installation, Log: log, Meter: noop.Meter{},
		Receive: func(h hints.Hint) { received <- h },
	})
	require.NoError(t, err)
	c := cycle{make(chan time.Time, 10), make(chan struct{}, 10)}
	m, err := mesh.New(poolConfig(sweeperPort, brokerPort), mesh.Deps{
		ServerID: "s", Installation: installation, Sweeper: c, Log: log, Meter: noop.Meter{},
	})
	require.NoError(t, err)
	hintstest.Start(t, broker.Component())
	hintstest.Start(t, m.Component())
	require.Eventually(t, func() bool { return broker.Stats().Alive == 1 }, patience, time.Millisecond)

	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	broker.Send(hints.Hint{Kind: hints.TimerDue, At: at})
	require.True(t, at.Equal(await(t, c.due)))
	broker.Send(hints.Hint{Kind: hints.FlagsChanged})
	await(t, c.kick)

	tenant := uuid.UUID{15: 1}
	m.Pushed(tenant, "q", "p", 3)
	require.Equal(t, hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: "q", Partition: "p", Count: 3}, await(t, received))
	require.Empty(t, c.due)
	require.Empty(t, c.kick)
}

func TestAloneThereIsNoPool(t *testing.T) {
	t.Parallel()
	m, err := mesh.New(hints.Config{Enabled: true, Port: 6633}, mesh.Deps{
		ServerID: "s", Installation: installation, Sweeper: cycle{}, Log: logtest.New(t), Meter: noop.Meter{},
	})
	require.NoError(t, err)
	c := m.Component()
	require.Nil(t, c.Start, "nothing is bound")
	m.Pushed(uuid.UUID{15: 1}, "q", "p", 3) // and nobody is told
}
