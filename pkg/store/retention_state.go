package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Walk says what one step of the safety walk has seen.
type Walk struct {
	Last     uuid.UUID // where the next step goes on
	Examined int
	Repaired int
	Skipped  int  // wrong, but held by somebody: left for the next round
	End      bool // the end was reached
}

// WalkStep compares the watermarks of the next lanes by id with their offsets, a
// deep step also with their first rows, and repairs them (log_watermark_walk_step_v1).
func (m *MaintenanceSession) WalkStep(ctx context.Context, after uuid.UUID, limit int, deep bool) (Walk, error) {
	w := Walk{Last: after}
	var last *uuid.UUID
	err := m.row(ctx, "watermark walk", `SELECT (r ->> 'last')::UUID, (r ->> 'examined')::INT, (r ->> 'repaired')::INT,
		(r ->> 'skipped')::INT, (r ->> 'end')::BOOLEAN
		FROM queen.log_watermark_walk_step_v1($1, $2, $3) AS r`,
		[]any{after, limit, deep}, &last, &w.Examined, &w.Repaired, &w.Skipped, &w.End)
	if err != nil {
		return Walk{}, err
	}
	if last != nil {
		w.Last = *last
	}
	return w, nil
}

// ClockDue is true at most once per every for a name, whoever asks and whichever
// replica leads; asking winds the clock up (maintenance_clock_due_v1).
func (m *MaintenanceSession) ClockDue(ctx context.Context, name string, every time.Duration) (due bool, err error) {
	err = m.row(ctx, "ask the maintenance clock", `SELECT queen.maintenance_clock_due_v1($1, $2)`, []any{name, every.Seconds()}, &due)
	return due, err
}

// positionKey is where a walk's position stands in system_state.
const positionKey = "maintenance_position:"

// Position reads where a walk of that name stopped; uuid.Nil for one that never did.
func (m *MaintenanceSession) Position(ctx context.Context, name string) (id uuid.UUID, err error) {
	err = m.row(ctx, "read the position", `SELECT COALESCE((SELECT (value #>> '{}')::UUID FROM queen.system_state WHERE key = $1), $2)`,
		[]any{positionKey + name, uuid.Nil}, &id)
	return id, err
}

// SetPosition remembers where a walk stopped, for whoever leads next.
func (m *MaintenanceSession) SetPosition(ctx context.Context, name string, id uuid.UUID) error {
	return m.do(ctx, "keep the position", func(ctx context.Context) error {
		_, err := m.conn.Exec(ctx, `INSERT INTO queen.system_state (key, value) VALUES ($1, to_jsonb($2::TEXT))
			ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now()`, positionKey+name, id.String())
		return err
	})
}

// RetentionSwitchedOff counts the queues that have windows of retention while their
// retention is switched off (retention_switched_off_v1).
func (s *Store) RetentionSwitchedOff(ctx context.Context) (queues int64, err error) {
	err = s.scanOne(ctx, "count queues without retention", `SELECT queen.retention_switched_off_v1()`, nil, &queues)
	return queues, err
}
