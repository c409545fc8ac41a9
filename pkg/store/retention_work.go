package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Plan is the work list of a cycle: the queues that have something due, with their
// cutoffs from one instant of the database.
type Plan struct {
	Now    time.Time
	Queues []QueuePlan // ascending by id
}

// QueuePlan is the policy of one queue as cutoffs, nil where a rule is off, and what
// of it has found something. What is due under Completed may turn out to be held.
type QueuePlan struct {
	Queue     uuid.UUID
	Name      string
	All       *time.Time // rule 1: age alone
	Completed *time.Time // rule 2: consumed only
	Txns      *time.Time // sidecar; never nil
	MaxWait   *time.Time // eviction
	LiveDue   bool       // rule 1 or 2 has a candidate
	TxnsDue   bool
	EvictDue  bool
	// OldestDue is by how much the oldest segment has outlived the first rule that
	// lets it go; 0 when none does.
	OldestDue time.Duration
}

// Plan reads the work list (log_retention_plan_v1). It reads no lane and no segment.
func (m *MaintenanceSession) Plan(ctx context.Context) (Plan, error) {
	var p Plan
	err := m.do(ctx, "plan retention", func(ctx context.Context) error {
		p = Plan{}
		rows, err := m.conn.Query(ctx, `SELECT now(), r_queue_id, r_queue, r_all_cutoff, r_completed_cutoff, r_txns_cutoff,
			r_max_wait_cutoff, r_live_due, r_txns_due, r_evict_due, r_overdue
			FROM (SELECT) AS once LEFT JOIN queen.log_retention_plan_v1() ON TRUE`)
		if err != nil {
			return err
		}
		var q planRow
		_, err = pgx.ForEachRow(rows, q.dest(&p.Now), func() error {
			if q.queue != nil {
				p.Queues = append(p.Queues, q.plan())
			}
			return nil
		})
		return err
	})
	if err != nil {
		return Plan{}, err
	}
	return p, nil
}

// planRow is a row of the plan; all NULL where there is nothing to do.
type planRow struct {
	queue               *uuid.UUID
	name                *string
	live, txns, evict   *bool
	overdue             *float64
	all, completed      *time.Time
	txnsCutoff, maxWait *time.Time
}

func (r *planRow) dest(now *time.Time) []any {
	return []any{now, &r.queue, &r.name, &r.all, &r.completed, &r.txnsCutoff, &r.maxWait, &r.live, &r.txns, &r.evict, &r.overdue}
}

func (r *planRow) plan() QueuePlan {
	q := QueuePlan{
		Queue: *r.queue, Name: *r.name, All: r.all, Completed: r.completed, Txns: r.txnsCutoff, MaxWait: r.maxWait,
		LiveDue: *r.live, TxnsDue: *r.txns, EvictDue: *r.evict,
	}
	if r.overdue != nil {
		q.OldestDue = seconds(*r.overdue)
	}
	return q
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// LaneKey is a place in an order of lanes: by a time, then by id. The zero key is
// before all.
type LaneKey struct {
	At time.Time
	ID uuid.UUID
}

// Page is a stretch of the lanes of a queue that are past a cutoff, oldest first.
type Page struct {
	Due      []uuid.UUID // those on which a step may find something, ascending
	Examined int         // with the held ones; below the limit at the end
	Last     LaneKey     // of the last one examined; zero when there was none
}

// RetentionPage reads the lanes behind one key, up to another (zero: to the
// cutoff), whose oldest segment is past a cutoff of rule 1 or 2. Examined but not
// due are those that are held: no group, or a group that stands before the first
// segment, and rule 1 does not apply.
func (m *MaintenanceSession) RetentionPage(ctx context.Context, q QueuePlan, after, until LaneKey, limit int) (Page, error) {
	return m.livePage(ctx, "page of lanes", q.Queue, q.All, q.Completed, after, until, limit)
}

// EvictPage reads the lanes whose oldest segment has waited too long.
func (m *MaintenanceSession) EvictPage(ctx context.Context, q QueuePlan, after LaneKey, limit int) (Page, error) {
	return m.livePage(ctx, "page of evictions", q.Queue, q.MaxWait, nil, after, LaneKey{}, limit)
}

func (m *MaintenanceSession) livePage(
	ctx context.Context, name string, queue uuid.UUID, all, completed *time.Time, after, until LaneKey, limit int,
) (Page, error) {
	var untilAt *time.Time
	var untilID *uuid.UUID
	if until != (LaneKey{}) {
		untilAt, untilID = &until.At, &until.ID
	}
	return m.page(ctx, name, `SELECT r_due, r_examined, r_last_at, r_last_id
		FROM queen.log_retention_page_v1($1, $2, $3, $4, $5, $6, $7, $8)`,
		queue, all, completed, after.At, after.ID, untilAt, untilID, limit)
}

// TxnsPage reads the lanes whose oldest sidecar row is past its cutoff.
func (m *MaintenanceSession) TxnsPage(ctx context.Context, q QueuePlan, after LaneKey, limit int) (Page, error) {
	return m.page(ctx, "page of sidecars", `SELECT r_due, r_examined, r_last_at, r_last_id
		FROM queen.log_txns_page_v1($1, $2, $3, $4, $5)`, q.Queue, q.Txns, after.At, after.ID, limit)
}

func (m *MaintenanceSession) page(ctx context.Context, name, call string, args ...any) (Page, error) {
	var p Page
	var at *time.Time
	var id *uuid.UUID
	if err := m.row(ctx, name, call, args, &p.Due, &p.Examined, &at, &id); err != nil {
		return Page{}, err
	}
	p.Last = laneKey(at, id)
	return p, nil
}

// laneKey is the key of what a page ended with; zero for an empty page.
func laneKey(at *time.Time, id *uuid.UUID) LaneKey {
	if at == nil || id == nil {
		return LaneKey{}
	}
	return LaneKey{At: *at, ID: *id}
}

// NextEviction tells in how long the next segment will have waited too long
// (log_next_eviction_v1): 0 when one has, nil when nothing waits for it.
func (m *MaintenanceSession) NextEviction(ctx context.Context) (*time.Duration, error) {
	var s *float64
	if err := m.row(ctx, "look for the next eviction", `SELECT queen.log_next_eviction_v1()`, nil, &s); err != nil || s == nil {
		return nil, err
	}
	d := seconds(*s)
	return &d, nil
}
