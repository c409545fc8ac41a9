package timers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/services/broker/internal/mint"
)

// Defaults of Config.
const (
	MaxPayloadBytesDefault = 1 << 20
	MaxHorizonDefault      = 90 * 24 * time.Hour
	MaxOpsDefault          = 256
)

// Config holds the limits of one call. Zero values take the defaults.
type Config struct {
	// MaxPayloadBytes bounds a payload, counted after base64.
	MaxPayloadBytes int
	// MaxOps bounds the operations of one call.
	MaxOps int
}

// Horizons tells how far ahead a tenant may schedule.
type Horizons interface {
	Horizon(tenant uuid.UUID) time.Duration
}

// Edge checks operations and makes them ready for the database. It is safe for
// concurrent use.
type Edge struct {
	maxPayload, maxOps int
	horizons           Horizons
	ids                *mint.Source
	scans              sync.Pool // of *scan
}

// NewEdge returns an Edge.
func NewEdge(cfg Config, horizons Horizons, ids *mint.Source) *Edge {
	return &Edge{
		maxPayload: cmp.Or(cfg.MaxPayloadBytes, MaxPayloadBytesDefault), maxOps: cmp.Or(cfg.MaxOps, MaxOpsDefault),
		horizons: horizons, ids: ids,
		scans: sync.Pool{New: func() any { return newScan() }},
	}
}

// Prepared are operations that the edge lets through.
type Prepared struct {
	// Ops is what the database gets: every schedule has a message id. It may be part
	// of what was prepared.
	Ops json.RawMessage
	// Count is how many operations there are, Schedules how many of them schedule or
	// reschedule.
	Count, Schedules int
	// Others tells that there is something else beside the schedules.
	Others bool
	// Soonest is the least delay of the schedules, never below zero.
	Soonest time.Duration

	kinds        []Kind
	payloadBytes int64
}

// Prepare checks the operations of one call, a JSON array, and gives every schedule
// its message id. rider tells that they ride in a transaction, which calls the array
// by another name. What is refused comes back as *wire.Refusal; cancels and unknown
// operations are left to the procedure.
func (e *Edge) Prepare(tenant uuid.UUID, ops json.RawMessage, rider bool) (Prepared, error) {
	s := e.scans.Get().(*scan)
	defer e.scans.Put(s)
	defer s.forget()
	s.begin(e, ops, rider)
	s.horizon = e.horizons.Horizon(tenant)
	if err := s.run(); err != nil {
		return Prepared{}, err
	}
	p := Prepared{
		Ops: ops, Count: len(s.kinds), Schedules: len(s.starts), Others: len(s.starts) < len(s.kinds),
		Soonest: s.soonest, kinds: append([]Kind(nil), s.kinds...), payloadBytes: s.payloadBytes,
	}
	if p.Schedules == 0 {
		return p, nil
	}
	var err error
	if p.Ops, err = s.stamp(e.ids); err != nil {
		return Prepared{}, fmt.Errorf("schedule timers: %w", err)
	}
	return p, nil
}
