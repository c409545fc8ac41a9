package dedup

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

// learn reads for a lane until it can answer.
func (c *Cache) learn(parent context.Context, lane Lane, q *query, began time.Time) Mark {
	ctx, cancel := context.WithTimeout(parent, c.cfg.Wait)
	defer cancel()
	for {
		now := c.now()
		e := c.entry(lane, now)
		gap := int64(gapAtOnce)
		if now.Sub(began) >= impatience {
			gap = gapImpatient
		}
		switch e.next(now, gap) {
		case stepAnswer:
			return c.narrow(parent, e.answer(q), q)
		case stepNothing:
			return unmarked()
		case stepScan:
			return c.scan(ctx, lane, q)
		}
		if err := c.advance(ctx, e, gap); err != nil {
			c.failed(ctx, err, placeOf(lane)...)
			return c.narrow(parent, e.answer(q), q)
		}
	}
}

// failed notes a read that failed; place says of what lane.
func (c *Cache) failed(ctx context.Context, err error, place ...slog.Attr) {
	c.metrics.failures.Add(ctx, 1)
	if ctx.Err() == nil && c.warnings.due(c.now()) {
		c.log.LogAttrs(ctx, slog.LevelWarn, "dedup window not read", append(place, logging.Err(err))...)
	}
}

func placeOf(lane Lane) []slog.Attr {
	return []slog.Attr{slog.String(logging.KeyQueue, lane.Queue), slog.String(logging.KeyPartition, lane.Partition)}
}

// advance takes the lane one step further, unless somebody else did meanwhile.
func (c *Cache) advance(ctx context.Context, e *entry, gap int64) error {
	select {
	case e.token <- struct{}{}:
		defer func() { <-e.token }()
	case <-ctx.Done():
		return ctx.Err()
	}
	switch e.next(c.now(), gap) {
	case stepReadLane:
		return c.readLane(ctx, e)
	case stepReadPage:
		return c.readPage(ctx, e)
	}
	return nil
}

// reading bounds the reads at once. A slot is taken for one page, so a long
// lane does not keep the short ones waiting.
func (c *Cache) reading(ctx context.Context) (done func(), err error) {
	select {
	case c.readers <- struct{}{}:
		return func() { <-c.readers }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Cache) readLane(ctx context.Context, e *entry) error {
	gen, id, window := e.known()
	sent := c.now()
	l, found, err := c.laneState(ctx, e.lane, id, window)
	if err != nil {
		return err
	}
	cold, gen, grown := e.learnt(gen, l, found, sent, c.now())
	c.settle(grown)
	if !cold {
		return nil
	}
	reserve := (l.Last - l.Start + 1) * bytesPerID
	if !c.admit(e, reserve, sent) {
		c.suppress(ctx, e)
		return nil
	}
	grown, ok := e.hydrate(gen, l, sent, reserve)
	c.settle(grown - reserve)
	if ok {
		c.metrics.hydrations.Add(ctx, 1)
	}
	return nil
}

func (c *Cache) laneState(ctx context.Context, lane Lane, known uuid.UUID, window int) (store.LaneState, bool, error) {
	done, err := c.reading(ctx)
	if err != nil {
		return store.LaneState{}, false, err
	}
	defer done()
	sent := c.now()
	l, found, err := c.store.Lane(ctx, lane.Tenant, lane.Queue, lane.Partition, slack, known, window)
	if err == nil && found && l.Window <= 0 {
		c.windowless.Add(queueKey{lane.Tenant, lane.Queue}, sent)
	}
	return l, found, err
}

func (c *Cache) readPage(ctx context.Context, e *entry) error {
	from := e.position()
	page, err := c.page(ctx, from.id, from.verified)
	if err != nil {
		return err
	}
	if !from.cold {
		c.metrics.catchUps.Add(ctx, 1)
	}
	c.charge(e, e.took(&c.builders, from, &page))
	return nil
}

func (c *Cache) page(ctx context.Context, id uuid.UUID, after int64) (store.Sidecar, error) {
	done, err := c.reading(ctx)
	if err != nil {
		return store.Sidecar{}, err
	}
	defer done()
	return c.store.SidecarPage(ctx, id, after, pageOffsets)
}

// scan answers for a barred lane: its window is read and compared, and nothing
// of it is kept.
func (c *Cache) scan(ctx context.Context, lane Lane, q *query) Mark {
	l, found, err := c.laneState(ctx, lane, uuid.Nil, 0)
	switch {
	case err != nil:
		c.failed(ctx, err, placeOf(lane)...)
		return unmarked()
	case !found || l.PartitionID == uuid.Nil || l.Window <= 0:
		return unmarked()
	}
	c.metrics.scans.Add(ctx, 1)
	m := Mark{PartitionID: l.PartitionID, Window: l.Window, Verified: l.Start - 1}
	for l.Last-m.Verified > gapAtOnce {
		page, err := c.page(ctx, m.PartitionID, m.Verified)
		if err != nil {
			c.failed(ctx, err, placeOf(lane)...)
			break
		}
		if len(page.Bases) == 0 {
			m.Verified = l.Last
			break
		}
		page.Rows(func(base, end int64, hashes []byte) {
			if q.match(hashes) {
				q.rows = append(q.rows, row{base, int(end - base + 1)})
			}
		})
		q.rows = newest(q.rows)
		m.Verified = page.Ends[len(page.Ends)-1]
	}
	for _, r := range q.rows {
		m.Suspects = append(m.Suspects, r.base)
	}
	c.metrics.suspects.Add(ctx, int64(len(m.Suspects)))
	return m
}

// newest keeps the newest rows, as many as may be read under a lock. Where rows
// are known to hold duplicates that is enough: the first of them that is still in
// the window makes SQL refuse the segment, and if none is, no older one is either.
func newest(rows []row) []row {
	frames := 0
	for i, r := range slices.Backward(rows) {
		frames += r.frames
		if n := len(rows) - i; n > 1 && (n > MaxSuspects || frames > MaxSuspectFrames) {
			return rows[i+1:]
		}
	}
	return rows
}

// confirmFrames is how much is read at once to compare suspects.
const confirmFrames = pageOffsets

// confirm reads the suspects, the newest first, and keeps those that do hold one
// of the hashes, as many as may be named.
func (c *Cache) confirm(ctx context.Context, id uuid.UUID, q *query) bool {
	var found []row // descending
	for rest := q.rows; len(rest) > 0; {
		var bases []int64
		for frames := 0; len(rest) > 0 && frames < confirmFrames; rest = rest[:len(rest)-1] {
			r := rest[len(rest)-1]
			bases, frames = append(bases, r.base), frames+r.frames
		}
		page, err := c.suspects(ctx, id, bases)
		if err != nil {
			c.failed(ctx, err, slog.String(logging.KeyPartitionID, id.String()))
			return false
		}
		var hits []row
		page.Rows(func(base, end int64, hashes []byte) {
			if q.match(hashes) {
				hits = append(hits, row{base, int(end - base + 1)})
			}
		})
		slices.Reverse(hits)
		found = append(found, hits...)
		if !within(found) {
			break
		}
	}
	slices.Reverse(found)
	q.rows = append(q.rows[:0], newest(found)...)
	return true
}

func (c *Cache) suspects(ctx context.Context, id uuid.UUID, bases []int64) (store.Sidecar, error) {
	done, err := c.reading(ctx)
	if err != nil {
		return store.Sidecar{}, err
	}
	defer done()
	return c.store.SidecarRows(ctx, id, bases)
}
