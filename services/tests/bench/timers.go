package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/segment"
)

const (
	timerLanes = 100
	timerTxn   = "txn-"
)

// timerBulk says which timers to write past the broker.
type timerBulk struct {
	queue  string
	timers int
	at     time.Time     // when the first is due
	step   time.Duration // from one to the next
}

const bulkTimers = `INSERT INTO queen.log_timers (queue, timer_key, "partition", deliver_at, txn, message_id, payload)
	SELECT @queue::text, 'timer-' || g, @prefix || lpad((g % @lanes::int)::text, @digits, '0'),
		@at::timestamptz + g * make_interval(secs => @step::float8), @txn || g, gen_random_uuid(),
		(@payloads::bytea[])[1 + g % cardinality(@payloads::bytea[])]
	FROM generate_series(0, @timers::int - 1) AS g`

// makeTimers writes timers with payloads like those of pushed messages, and cleans up
// as autovacuum would later.
func (s *stack) makeTimers(ctx context.Context, k timerBulk) error {
	progress("  making %d timers in %s", k.timers, k.queue)
	payloads := make([][]byte, distinctBodies)
	for i := range payloads {
		var err error
		if payloads[i], err = newPayload(payloadBytes); err != nil {
			return err
		}
	}
	args := pgx.NamedArgs{
		"queue": k.queue, "timers": k.timers, "lanes": timerLanes, "at": k.at, "step": k.step.Seconds(),
		"payloads": payloads, "prefix": lanePrefix, "digits": laneDigits, "txn": timerTxn,
	}
	if _, err := s.db.Exec(ctx, bulkTimers, args); err != nil {
		return fmt.Errorf("write timers: %w", err)
	}
	if _, err := s.db.Exec(ctx, "VACUUM (ANALYZE) queen.log_timers"); err != nil {
		return err
	}
	return s.checkpoint(ctx)
}

const (
	// backlogLead is the time that 10,000 timers may take to be written, and
	// backlogLeast is added: nothing may be due before all of it is there.
	backlogLead  = time.Second
	backlogLeast = 3 * time.Second
)

// makeBacklog writes timers that become due at the same instant, which is the answer.
func (s *stack) makeBacklog(ctx context.Context, queue string, timers int) (due time.Time, err error) {
	lead := backlogLeast + time.Duration(timers)*backlogLead/10_000
	const q = `SELECT clock_timestamp() + make_interval(secs => $1)`
	if err := s.db.QueryRow(ctx, q, lead.Seconds()).Scan(&due); err != nil {
		return due, err
	}
	if err := s.makeTimers(ctx, timerBulk{queue: queue, timers: timers, at: due}); err != nil {
		return due, err
	}
	if late := time.Since(due); late > 0 {
		return due, fmt.Errorf("the machine is too busy: %d timers took %s to write", timers, lead+late)
	}
	return due, nil
}

// emptied is how a backlog went.
type emptied struct {
	block
	before, after []series      // the sweepers' metrics
	watched       time.Duration // between the two
}

// each is by how much a series has grown in each sweeper.
func (e emptied) each(name string) ([]float64, error) { return growth(e.before, e.after, name) }

// empty makes a backlog and has it fired by the sweepers that run. The block lasts from
// the instant at which it is due to the time stamp of the last message. The queue must
// be new.
func (s *stack) empty(ctx context.Context, queue string, timers int) (e emptied, err error) {
	due, err := s.makeBacklog(ctx, queue, timers)
	if err != nil {
		return e, err
	}
	waitUntil(ctx, due.Add(-firedLook))
	before, err := s.usage(ctx)
	if err != nil {
		return e, err
	}
	began := time.Now()
	if e.before, err = s.sweeperMetrics(ctx); err != nil {
		return e, err
	}
	if err := s.awaitFired(ctx, e.before, timers); err != nil {
		return e, err
	}
	after, err := s.usage(ctx)
	if err != nil {
		return e, err
	}
	if e.after, err = s.sweeperMetrics(ctx); err != nil {
		return e, err
	}
	e.watched = time.Since(began)
	e.used, e.pushed = after.minus(before), int64(timers)
	const last = `SELECT max(g.created_at) FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		JOIN queen.log_segments AS g ON g.partition_id = p.id WHERE q.name = $1`
	var ended time.Time
	if err := s.db.QueryRow(ctx, last, queue).Scan(&ended); err != nil {
		return e, err
	}
	e.elapsed = ended.Sub(due)
	e.failures, e.err = s.onceEach(ctx, queue, timers)
	return e, nil
}

// onceEach reads the messages of a queue and tells how many timers of a backlog have
// not exactly one there.
func (s *stack) onceEach(ctx context.Context, queue string, timers int) (wrong int64, first error) {
	found, err := s.firedMessages(ctx, queue, timers)
	if err != nil {
		return 1, err
	}
	for n, times := range found {
		if times == 1 {
			continue
		}
		if wrong++; first == nil {
			first = fmt.Errorf("timer %d of %s was delivered %d times", n, queue, times)
		}
	}
	return wrong, first
}

// firedMessages counts the messages of every timer of a backlog.
func (s *stack) firedMessages(ctx context.Context, queue string, timers int) ([]int, error) {
	const q = `SELECT g.end_offset - g.base_offset + 1, g.blob FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		JOIN queen.log_segments AS g ON g.partition_id = p.id WHERE q.name = $1`
	reader, err := segment.NewReader(0)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.Query(ctx, q, queue)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make([]int, timers)
	for rows.Next() {
		var frames int
		var blob []byte
		if err := rows.Scan(&frames, &blob); err != nil {
			return nil, err
		}
		err := reader.Unpack(blob, 0, frames, func(_ int, f segment.Frame) error {
			n, err := timerNumber(f.TransactionID, timers)
			if err == nil {
				found[n]++
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the messages of %s: %w", queue, err)
		}
	}
	return found, rows.Err()
}

// timerNumber finds out which timer of a backlog a message came from.
func timerNumber(txn string, timers int) (int, error) {
	digits, ok := strings.CutPrefix(txn, timerTxn)
	n := number([]byte(digits))
	if !ok || n < 0 || n >= timers {
		return 0, fmt.Errorf("%q is none of %d timers", txn, timers)
	}
	return n, nil
}

// newTimerHopper schedules timers without delay through the first broker, for pops at
// the same one.
func newTimerHopper(ctx context.Context, s *stack, limit, parks time.Duration) (*hopper, error) {
	payload, err := newPayload(payloadBytes)
	if err != nil {
		return nil, err
	}
	const queue = "hop"
	h := &hopper{
		queue: queue, from: &conn{addr: s.brokers[0].addr}, to: &conn{addr: s.brokers[0].addr},
		limit: limit, parks: parks, accepted: []byte(`"status": "scheduled"`),
		request: func(n int, at time.Time) []byte { return scheduleRequest(queue, n, at, payload) },
	}
	return h, s.register(ctx, queue)
}

// scheduleRequest schedules one timer without delay, whose payload says when.
func scheduleRequest(queue string, n int, at time.Time, payload []byte) []byte {
	stamp := strconv.AppendInt(nil, at.UnixMicro(), 10)
	copy(payload[len(`{"t":`):], stamp)
	body := fmt.Sprintf(`{"operations":[{"op":"schedule","queue":%q,"partition":%q,"timerKey":"timer-%d","delayMs":0,"txn":"%s%d","payload":%q}]}`,
		queue, laneName(n%timerLanes), n, timerTxn, n, base64.StdEncoding.EncodeToString(payload))
	return newRequest(http.MethodPost, "/api/v1/timers", body)
}
