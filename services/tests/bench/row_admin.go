package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	adminQueue    = "queue" // and a number
	adminSegments = 5       // of a lane
	adminMessages = 10      // of a segment
	adminBytes    = 128     // of a message
	adminGroups   = 3
	adminUnread   = 0.1 // of each lane, by the slowest group
	// All messages are of the last hour, which is what the page of messages is made from
	// unless it is told another time: the oldest is of adminAge + adminSpread.
	adminAge    = 25 * time.Minute
	adminUntil  = 10 * time.Second
	adminSpread = 25 * time.Minute
	// adminLanesPerLetter lanes have one dead letter.
	adminLanesPerLetter = 10
	// adminMinutes have figures of every queue.
	adminMinutes = 60

	// seriesGroupLag has one series for each group of each queue.
	seriesGroupLag = "queen_consumer_group_lag_messages{"

	listTime    = 300 // milliseconds
	pageTime    = 150
	scrapeBytes = 2 // MB
)

// adminBulk is what is shown.
func adminBulk(sc scale) bulk {
	return bulk{
		queue: adminQueue, queues: sc.Queues, lanes: sc.Shown / sc.Queues, segments: adminSegments, messages: adminMessages,
		age: adminAge, until: adminUntil, spread: adminSpread, groups: adminGroups, unread: adminUnread,
	}
}

// adminShare says that it is less than what the targets are for.
func adminShare(sc scale) string {
	if sc.Shown == fullScale.Shown {
		return ""
	}
	return fmt.Sprintf(", 1/%d of what the targets are for", fullScale.Shown/sc.Shown)
}

// runAdmin has an operator look at a large installation: one request after another, each
// route in turn, while a maintainer refreshes the statistics and does all else that it
// usually does. A broker remembers what a scrape has read for some seconds, so the rounds
// are further apart than that.
func runAdmin(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		k := adminBulk(b.scale)
		out.tell("messages"+adminShare(b.scale), "", []float64{float64(k.total() * k.messages)})
		out.tell("lanes", "", []float64{float64(k.queues * k.lanes)})
		if err := s.makeShown(ctx, k); err != nil {
			return err
		}
		return b.maintained(ctx, s, nil, func() error {
			if err := s.awaitShown(ctx, k); err != nil {
				return err
			}
			asks := adminAsks(s, k)
			if err := b.askAll(ctx, asks); err != nil {
				return err
			}
			for _, a := range asks {
				a.report(out)
			}
			return nil
		})
	})
}

// adminAsks are the routes that are measured.
func adminAsks(s *stack, k bulk) []*ask {
	queues := k.names()
	broker, maintainer := s.brokers[0].addr, s.maintainer.addr
	always := func(path string) func(int) string { return func(int) string { return path } }
	messages := min(200, k.total()*k.messages)
	letters := min(100, k.queues*k.lanes/adminLanesPerLetter)
	return []*ask{
		{name: "queue list", addr: broker, path: always("/api/v1/resources/queues"), under: listTime, mark: `"retainedBytes"`, marks: k.queues},
		{
			name: "queue detail", addr: broker, under: pageTime, mark: `"oldestMessage"`, marks: k.lanes,
			path: func(i int) string { return "/api/v1/resources/queues/" + queues[i*len(queues)/7%len(queues)] },
		},
		{name: "overview", addr: broker, path: always("/api/v1/resources/overview"), under: pageTime, mark: `"statsAge"`, marks: 1},
		{name: "message page", addr: broker, path: always("/api/v1/messages"), under: pageTime, mark: `"payloadAvailable":true`, marks: messages},
		{
			name: "scrape of the broker", addr: broker, path: always("/metrics/prometheus"), under: pageTime, size: scrapeBytes,
			mark: "\nqueen_queue_push_messages_per_minute{", marks: k.queues,
		},
		{
			name: "scrape of the maintainer", addr: maintainer, path: always("/metrics"), under: pageTime, size: scrapeBytes,
			mark: "\n" + seriesGroupLag, marks: k.groups * k.queues,
		},
		{name: "page of dead letters", addr: broker, path: always("/api/v1/dlq"), mark: `"failedAt"`, marks: letters},
		{name: "consumer groups", addr: broker, path: always("/api/v1/consumer-groups"), mark: `"partitionCursors"`, marks: k.queues * k.groups},
		{name: "status", addr: broker, path: always("/api/v1/status"), mark: `"deadLetterQueue"`, marks: 1},
		{name: "postgres-stats", addr: broker, path: always("/api/v1/analytics/postgres-stats"), mark: `"databaseCache"`, marks: 1},
	}
}

// The letters lie at the first message of their lanes, which the slowest group has read.
const (
	shownGroups = `INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp)
		SELECT $2 || g, q.id, 'all', now() FROM queen.queues AS q, generate_series(0, $3::int - 1) AS g WHERE q.name = ANY ($1)`
	shownLetters = `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", transaction_id, payload, error, failed_at)
		SELECT l.id, $2, 0, 'letter-' || l.n, jsonb_build_object('order', l.n, 'note', repeat('x', $4)),
			'handler gave up: order ' || l.n, l.last_write_at
		FROM (
			SELECT p.id, p.last_write_at, row_number() OVER (ORDER BY p.id) AS n
			FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id WHERE q.name = ANY ($1)
		) AS l
		WHERE l.n % $3 = 0`
	shownMinutes = `INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id, push_requests, push_messages, pop_requests, pop_messages,
			pop_empty, ack_requests, ack_success, avg_lag_ms, max_lag_ms)
		SELECT date_trunc('minute', now()) - make_interval(mins => m), q.id, 42, 420, 60, 1260, 18, 42, 1260, 12.5, 80
		FROM queen.queues AS q, generate_series(0, $2::int - 1) AS m WHERE q.name = ANY ($1)
		ON CONFLICT DO NOTHING`
)

// makeShown writes the lanes, dead letters, and what brokers count of the queues.
func (s *stack) makeShown(ctx context.Context, k bulk) error {
	progress("  making %d messages in %d lanes of %d queues", k.total()*k.messages, k.queues*k.lanes, k.queues)
	began := time.Now()
	if err := k.write(ctx, s.db, func() ([]byte, error) { return newPayload(adminBytes) }); err != nil {
		return err
	}
	for _, step := range []struct {
		sql  string
		args []any
	}{
		{shownGroups, []any{k.names(), groupPrefix, k.groups}},
		{shownLetters, []any{k.names(), groupName(0), adminLanesPerLetter, adminBytes}},
		{shownMinutes, []any{k.names(), adminMinutes}},
	} {
		if _, err := s.db.Exec(ctx, step.sql, step.args...); err != nil {
			return fmt.Errorf("write what is shown: %w", err)
		}
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := s.checkpoint(ctx); err != nil {
		return err
	}
	progress("  made in %s", time.Since(began).Round(time.Second/10))
	return nil
}

// awaitShown waits until the maintainer has reconciled the statistics of every queue,
// measured what it retains and looked at the lag of the groups, and makes sure that the
// statistics are those of what was written.
func (s *stack) awaitShown(ctx context.Context, k bulk) error {
	const q = `SELECT count(*) FILTER (WHERE t.retained_bytes > 0 AND t.segment_count > 0), COALESCE(sum(t.total_messages), 0),
			COALESCE(sum(t.pending_messages), 0), COALESCE(sum(t.dead_letter_messages), 0)
		FROM queen.stats AS t WHERE t.stat_type = 'queue'`
	var measured, total, pending, letters int
	err := s.await(ctx, "the statistics", func() (bool, error) {
		err := s.db.QueryRow(ctx, q).Scan(&measured, &total, &pending, &letters)
		return measured == k.queues, err
	})
	if err != nil {
		return err
	}
	err = s.await(ctx, "the lag of the groups", func() (bool, error) {
		now, err := s.maintainer.metrics(ctx)
		groups := 0
		for name := range now {
			if strings.HasPrefix(name, seriesGroupLag) {
				groups++
			}
		}
		return groups == k.queues*k.groups, err
	})
	if err != nil {
		return err
	}
	lanes := k.queues * k.lanes
	all := k.total() * k.messages
	unread := lanes * int(k.unread*float64(k.segments*k.messages))
	if dead := lanes / adminLanesPerLetter; total != all || pending != unread || letters != dead {
		return fmt.Errorf("the statistics say %d messages, %d pending, %d dead letters, not %d, %d and %d", total, pending, letters, all, unread, dead)
	}
	return nil
}
