package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// TimerGroup is the consumer group under which timers are dead-lettered.
const TimerGroup = "__timer__"

// TimersDue is the answer of the probe.
type TimersDue struct {
	Now time.Time // of the database
	// Next is how far away the next timer is, negative when it is late; nil when there
	// is none.
	Next   *time.Duration
	Due    int
	Capped bool          // more may be due
	Late   time.Duration // how late the first of them is
}

// TimersDue asks when the next timer of the shards is due, and counts up to limit that
// are (log_timers_due_v1).
func (s *Store) TimersDue(ctx context.Context, shards []int16, limit int) (TimersDue, error) {
	var answer struct {
		Now       time.Time `json:"now"`
		NextInMs  *int64    `json:"nextInMs"`
		Due       int       `json:"due"`
		DueCapped bool      `json:"dueCapped"`
		LateMs    int64     `json:"lateMs"`
	}
	err := s.document(ctx, "probe timers", &answer, `SELECT queen.log_timers_due_v1($1, NULL, $2)`, shards, limit)
	due := TimersDue{Now: answer.Now, Due: answer.Due, Capped: answer.DueCapped, Late: millis(answer.LateMs)}
	if answer.NextInMs != nil {
		next := millis(*answer.NextInMs)
		due.Next = &next
	}
	return due, err
}

// TimerKey names a timer.
type TimerKey struct {
	Tenant uuid.UUID `json:"tenant"`
	Queue  string    `json:"queue"`
	Key    string    `json:"timerKey"`
}

// ClaimedTimer is a timer under a lease. The payload is what was scheduled.
type ClaimedTimer struct {
	TimerKey
	Partition   string
	Txn         string
	MessageID   uuid.UUID
	Payload     []byte
	PayloadZstd bool
	Encrypted   bool
	ProducerSub string // "" for nobody
	Attempts    int    // failures so far
	Late        time.Duration
	Token       uuid.UUID
}

// ClaimPart tells how far a claim may end before its rows for the sake of order: at a
// quarter of them.
const ClaimPart = 4

// TimerClaim says how much to claim.
type TimerClaim struct {
	Shards    []int16
	Lease     time.Duration
	Rows      int // at most
	PerTenant int // rows of one tenant and shard at most; 0 is no bound of its own
}

// TimersClaim takes due timers under a lease, the earliest of all the shards, in the
// order in which they were due (log_timers_claim_v1). It waits for nobody.
//
// Of all 64 shards, claims one after the other are in order, too, unless one shard holds
// more of the earliest than its share, max(Rows/64, 8), or PerTenant is below that share:
// where a shard has more than its share, the claim takes nothing that is later than what
// it leaves, and comes back with fewer rows, but a ClaimPart of them at least.
func (s *Store) TimersClaim(ctx context.Context, c TimerClaim) (claimed []ClaimedTimer, err error) {
	const call = `SELECT r_tenant, r_queue, r_timer_key, r_partition, r_txn, r_message_id, r_payload, r_payload_zstd, r_encrypted,
		COALESCE(r_producer_sub, ''), r_attempts, r_late_ms, r_token
		FROM queen.log_timers_claim_v1($1, NULL, $2, $3, $4)`
	var perTenant *int
	if c.PerTenant > 0 {
		perTenant = &c.PerTenant
	}
	err = s.db.Do(ctx, "claim timers", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, call, c.Shards, c.Lease.Milliseconds(), c.Rows, perTenant)
		if err != nil {
			return err
		}
		claimed, err = pgx.CollectRows(rows, scanClaim)
		return err
	})
	return claimed, err
}

func scanClaim(row pgx.CollectableRow) (t ClaimedTimer, err error) {
	var late int64
	err = row.Scan(&t.Tenant, &t.Queue, &t.Key, &t.Partition, &t.Txn, &t.MessageID, &t.Payload, &t.PayloadZstd, &t.Encrypted,
		&t.ProducerSub, &t.Attempts, &late, &t.Token)
	t.Late = millis(late)
	return t, err
}

// FireSegment is a packed segment of claimed timers on its way into one partition.
// Keys and Tokens are those of the timers, in the order of the frames.
type FireSegment struct {
	Tenant    uuid.UUID
	Queue     string
	Partition string
	Hashes    []byte // 16 bytes per frame
	Blob      []byte
	Keys      []string
	Tokens    []uuid.UUID
}

// FireVerdict answers one FireSegment, at the same position. A segment that was not
// fired is stale, and nothing of it was written: a timer of it is not held any more,
// or merely locked at the moment, by a claim or a request that looked at it and passed
// on. The fire waits for nobody and cannot give such a one back; TimersFail without a
// backoff does, and without it the timer waits for the end of its lease.
type FireVerdict struct {
	Fired       bool
	PartitionID uuid.UUID
	BaseOffset  int64
	CreatedAt   time.Time
}

// TimersFire pushes the segments and deletes their timers in one transaction
// (log_timers_fire_v1), creating queues and partitions that are missing. No two
// segments may be of one partition. After an error nothing was written, unless
// Ambiguous says that the answer was lost.
func (s *Store) TimersFire(ctx context.Context, segs []FireSegment) ([]FireVerdict, error) {
	c := fireArguments(segs)
	var answer []struct {
		Result      string    `json:"result"`
		PartitionID uuid.UUID `json:"partitionId"`
		BaseOffset  int64     `json:"baseOffset"`
		CreatedAt   time.Time `json:"createdAt"`
	}
	err := s.document(ctx, "fire timers", &answer, `SELECT queen.log_timers_fire_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		c.tenants, c.queues, c.partitions, c.counts, c.hashes, c.blobs, c.keys, c.segments, c.tokens)
	if err != nil {
		return nil, err
	}
	if len(answer) != len(segs) {
		return nil, fmt.Errorf("fire timers: %w: %d verdicts for %d segments", errAnswer, len(answer), len(segs))
	}
	verdicts := make([]FireVerdict, len(segs))
	for i, a := range answer {
		verdicts[i] = FireVerdict{Fired: a.Result == "fired", PartitionID: a.PartitionID, BaseOffset: a.BaseOffset, CreatedAt: a.CreatedAt}
	}
	return verdicts, nil
}

// fireColumns are segments as the arguments of log_timers_fire_v1.
type fireColumns struct {
	tenants            []uuid.UUID
	queues, partitions []string
	counts             []int32
	hashes, blobs      [][]byte
	keys               []string
	segments           []int32 // of the key, from 1
	tokens             []uuid.UUID
}

func fireArguments(segs []FireSegment) fireColumns {
	var c fireColumns
	for i := range segs {
		s := &segs[i]
		c.tenants, c.queues, c.partitions = append(c.tenants, s.Tenant), append(c.queues, s.Queue), append(c.partitions, s.Partition)
		c.counts = append(c.counts, int32(len(s.Keys)))
		c.hashes, c.blobs = append(c.hashes, s.Hashes), append(c.blobs, s.Blob)
		c.keys, c.tokens = append(c.keys, s.Keys...), append(c.tokens, s.Tokens...)
		for range s.Keys {
			c.segments = append(c.segments, int32(i+1))
		}
	}
	return c
}

// HeldTimer names a timer and the token under which it was claimed.
type HeldTimer struct {
	TimerKey
	Token uuid.UUID
}

// TimerFailure says what becomes of timers that could not be fired.
type TimerFailure struct {
	Backoff     time.Duration
	Error       string
	Transient   bool // does not count as an attempt
	MaxAttempts int
}

// TimersFailed is what TimersFail did.
type TimersFailed struct {
	Failed    int // timers that were still held
	Exhausted []ExhaustedTimer
}

// ExhaustedTimer has used up its attempts and is to be dead-lettered.
type ExhaustedTimer struct {
	TimerKey
	Attempts int `json:"attempts"`
}

// TimersFail gives claimed timers back, to be visible again after a backoff
// (log_timers_fail_v1). Those that are not held any more are left alone.
func (s *Store) TimersFail(ctx context.Context, timers []HeldTimer, f TimerFailure) (TimersFailed, error) {
	tenants, queues, keys := make([]uuid.UUID, len(timers)), make([]string, len(timers)), make([]string, len(timers))
	tokens := make([]uuid.UUID, len(timers))
	for i, t := range timers {
		tenants[i], queues[i], keys[i], tokens[i] = t.Tenant, t.Queue, t.Key, t.Token
	}
	var out TimersFailed
	err := s.document(ctx, "give timers back", &out, `SELECT queen.log_timers_fail_v1($1, $2, $3, $4, $5, $6, $7, $8)`,
		tenants, queues, keys, tokens, f.Backoff.Milliseconds(), storable(f.Error), !f.Transient, f.MaxAttempts)
	return out, err
}

// TimerLetter is a timer to be dead-lettered.
type TimerLetter struct {
	TimerKey
	Payload []byte // as a consumer would have got it; what jsonb refuses is stored as {"$raw": base64}
	Error   string
}

// TimersDeadLetter moves timers with at least minAttempts failures that nobody holds
// among the dead letters (log_timers_dlq_v1). It never fails on content: a payload that
// is no JSON, or that jsonb refuses, is stored in a form that DecodeSnapshot undoes
// (design rule 9).
func (s *Store) TimersDeadLetter(ctx context.Context, letters []TimerLetter, minAttempts int) (archived, skipped int, err error) {
	payloads := make([]string, len(letters))
	for i := range letters {
		payloads[i] = string(letters[i].snapshot())
	}
	archived, skipped, err = s.timersDeadLetter(ctx, letters, payloads, minAttempts)
	switch {
	case !refusedByJSONB(err):
		return archived, skipped, err
	case len(letters) == 1:
		return s.timersDeadLetter(ctx, letters, []string{string(rawForm(letters[0].Payload))}, minAttempts)
	}
	archived, skipped = 0, 0
	for i := range letters { // whichever it is
		a, s, err := s.TimersDeadLetter(ctx, letters[i:i+1], minAttempts)
		if err != nil {
			return archived, skipped, err
		}
		archived, skipped = archived+a, skipped+s
	}
	return archived, skipped, nil
}

func (s *Store) timersDeadLetter(ctx context.Context, letters []TimerLetter, payloads []string, minAttempts int) (archived, skipped int, err error) {
	tenants, queues, keys := make([]uuid.UUID, len(letters)), make([]string, len(letters)), make([]string, len(letters))
	texts := make([]string, len(letters))
	for i, l := range letters {
		tenants[i], queues[i], keys[i], texts[i] = l.Tenant, l.Queue, l.Key, storable(l.Error)
	}
	var answer struct{ Archived, Skipped int }
	err = s.document(ctx, "dead-letter timers", &answer, `SELECT queen.log_timers_dlq_v1($1, $2, $3, $4::TEXT[]::JSONB[], $5, $6)`,
		tenants, queues, keys, payloads, texts, minAttempts)
	return answer.Archived, answer.Skipped, err
}

// snapshot is the payload as far as it can be seen from here to be storable.
func (l *TimerLetter) snapshot() []byte {
	if !json.Valid(l.Payload) || isRawForm(l.Payload) || !fitsJSONB(l.Payload) {
		return rawForm(l.Payload)
	}
	return l.Payload
}
