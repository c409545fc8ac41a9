package modes

import (
	"context"
	"errors"
	"log/slog"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

// The flags of Modes, in their order in the set.
const (
	pushFlag = iota
	popFlag
)

// Deps are what Modes work with.
type Deps struct {
	Store  Store
	Meter  metric.Meter
	Logger *slog.Logger
	// PopsHeld is called when pop maintenance begins, and must not block; nil: nobody
	// waits.
	PopsHeld func()
}

// Modes are the two that hold traffic back: maintenance of pushes and of pops. They
// are safe for concurrent use.
type Modes struct{ *Set }

// New returns Modes of which none is on until the first reading.
func New(deps Deps) (*Modes, error) {
	m := &Modes{NewSet(deps.Store, deps.Logger,
		Flag{Key: store.FlagPushMaintenance, Name: "pushMaintenance"}, Flag{Key: store.FlagPopMaintenance, Name: "popMaintenance"})}
	m.flipped = func(_, is Bits) {
		if is.On(popFlag) && deps.PopsHeld != nil {
			deps.PopsHeld()
		}
	}
	return m, m.show(deps.Meter)
}

// show makes the gauges that tell whether traffic is held back.
func (m *Modes) show(meter metric.Meter) error {
	gauge := func(name, help string, on func() bool) error {
		_, err := meter.Int64ObservableGauge(name, metric.WithDescription(help), metric.WithInt64Callback(
			func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(bit(on()))
				return nil
			}))
		return err
	}
	return errors.Join(
		gauge("queen.maintenance_mode_enabled", "1 while maintenance keeps pushes away from the database.", m.PushMaintenance),
		gauge("queen.pop_maintenance_mode_enabled", "1 while maintenance has every pop answered with nothing.", m.PopMaintenance),
	)
}

func bit(on bool) int64 {
	if on {
		return 1
	}
	return 0
}

// Start reads the flags once, so that the first request finds them known. What cannot
// be read is tried again by Run.
func (m *Modes) Start(ctx context.Context) error {
	_ = m.Read(ctx)
	return nil
}

// PushMaintenance says whether nothing that is pushed may reach the database.
func (m *Modes) PushMaintenance() bool { return m.InForce().On(pushFlag) }

// PopMaintenance says whether every pop is to be answered with nothing.
func (m *Modes) PopMaintenance() bool { return m.InForce().On(popFlag) }

// SetPush switches maintenance of pushes. mirrored is that of Change.
func (m *Modes) SetPush(ctx context.Context, on bool) (mirrored bool) {
	return m.Change(ctx, map[store.Flag]bool{store.FlagPushMaintenance: on})
}

// SetPop switches maintenance of pops. mirrored is that of Change.
func (m *Modes) SetPop(ctx context.Context, on bool) (mirrored bool) {
	return m.Change(ctx, map[store.Flag]bool{store.FlagPopMaintenance: on})
}
