package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

var (
	errTooLarge = errors.New("request body is too large")
	errBusy     = errors.New("too many request bodies are in flight")
	errSlow     = errors.New("request body did not arrive in time")
	errCutOff   = errors.New("request body ended early")
	errFraming  = errors.New("request body is framed wrongly")
)

const (
	slowestRate = 128 << 10 // bytes a second
	firstChunk  = 64 << 10  // reservation for a body of unknown length

	// Buffers are pooled by size, from 4 KiB in steps of 4 up to 4 MiB, so that a
	// small body never pins a large buffer. Larger ones are left to the collector.
	smallestClass = 4 << 10
	classes       = 6
)

// line is where a request waits for the budget. Everybody gets its turn in the
// order of arrival, but a crowd in one line does not keep the other from being
// joined: what finishes work must get through while more of it pours in.
type line int

const (
	intake line = iota // pushes and transactions
	upkeep             // the rest
	lines
)

// bodies reads request bodies into pooled buffers within one byte budget.
type bodies struct {
	max        int64
	wait       time.Duration
	patience   time.Duration
	budget     *semaphore.Weighted // FIFO: a large body is not overtaken for ever
	inflight   atomic.Int64
	maxWaiting int64               // in each line
	waiting    [lines]atomic.Int64 // requests that wait for bytes or items

	maxItems      int64 // bytes
	items         *semaphore.Weighted
	inflightItems atomic.Int64

	pools [classes]sync.Pool // of *[]byte
}

func newBodies(cfg Config) *bodies {
	return &bodies{
		max: cfg.MaxBodyBytes, wait: cmp.Or(cfg.InflightWait, InflightWaitDefault),
		patience:   cmp.Or(cfg.BodyPatience, BodyPatienceDefault),
		budget:     semaphore.NewWeighted(cfg.MaxInflightBytes),
		maxWaiting: int64(cmp.Or(cfg.MaxWaiting, MaxWaitingDefault)),
		maxItems:   cfg.MaxInflightBytes, items: semaphore.NewWeighted(cfg.MaxInflightBytes),
	}
}

// body is one request body. Its bytes are valid until release.
type body struct {
	owner    *bodies
	line     line
	buf      *[]byte // nil until bytes are reserved
	reserved int64
	items    int64         // bytes set aside for its items
	left     time.Duration // of the time to wait for a budget
}

func (b *body) bytes() []byte {
	if b.buf == nil {
		return nil
	}
	return *b.buf
}

// release gives buffer and budget back.
func (b *body) release() {
	if b.buf == nil {
		return
	}
	b.haveItems(0)
	b.owner.recycle(b.buf)
	b.owner.inflight.Add(-b.reserved)
	b.owner.budget.Release(b.reserved)
}

// read reads the whole body. The caller releases it when nothing refers to its
// bytes any more.
func (bs *bodies) read(w http.ResponseWriter, r *http.Request, l line) (*body, error) {
	if r.ContentLength > bs.max {
		return nil, errTooLarge
	}
	b := &body{owner: bs, line: l, left: bs.wait}
	err := bs.fill(b, w, r)
	if err == nil {
		return b, nil
	}
	b.release()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errSlow
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errCutOff
	}
	return nil, err
}

func (bs *bodies) fill(b *body, w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	first := r.ContentLength
	if first < 0 {
		first = min(firstChunk, bs.max)
	}
	if err := b.reserve(r.Context(), first); err != nil {
		return err
	}
	conn := http.NewResponseController(w)
	length := r.ContentLength
	if length < 0 {
		length = bs.max
	}
	// Without a bound, a few clients that trickle could hold the whole budget.
	until := time.Now().Add(bs.patience + transferTime(length))
	_ = conn.SetReadDeadline(until)
	if r.Header.Get("Expect") != "" {
		// Reading answers "100 Continue", and the deadline of the connection's
		// previous response may have passed.
		_ = conn.SetWriteDeadline(until)
	}
	if err := b.readAll(r.Context(), r.Body, r.ContentLength >= 0); err != nil {
		return err
	}
	// The connection is now watched for the client leaving, without a deadline.
	_ = conn.SetReadDeadline(time.Time{})
	return nil
}

// readAll reads into the reserved bytes and, for a body of unknown length,
// doubles the reservation as it goes.
func (b *body) readAll(ctx context.Context, src io.Reader, known bool) error {
	for {
		if have := int64(len(*b.buf)); have == b.reserved {
			more := min(b.reserved, b.owner.max-b.reserved)
			switch {
			case known:
				return nil
			case more == 0:
				return expectEnd(src)
			}
			if err := b.reserve(ctx, more); err != nil {
				return err
			}
		}
		n, err := src.Read((*b.buf)[len(*b.buf):b.reserved])
		*b.buf = (*b.buf)[:len(*b.buf)+n]
		switch {
		case errors.Is(err, io.EOF) && known && int64(len(*b.buf)) < b.reserved:
			return errCutOff
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", errFraming, err)
		}
	}
}

// expectEnd refuses a body that goes on beyond the largest one.
func expectEnd(src io.Reader) error {
	var one [1]byte
	switch n, err := io.ReadFull(src, one[:]); {
	case n > 0:
		return errTooLarge
	case errors.Is(err, io.EOF):
		return nil
	default:
		return fmt.Errorf("%w: %w", errFraming, err)
	}
}

// reserve takes n more bytes of the budget and only then makes room for them, so
// that requests which wait for their turn hold no memory.
func (b *body) reserve(ctx context.Context, n int64) error {
	if err := b.wait(ctx, b.owner.budget, n); err != nil {
		return err
	}
	b.reserved += n
	b.owner.inflight.Add(n)
	switch {
	case b.buf == nil:
		b.buf = b.owner.buffer(b.reserved)
	case int64(cap(*b.buf)) < b.reserved:
		grown := b.owner.buffer(b.reserved)
		*grown = append(*grown, *b.buf...)
		b.owner.recycle(b.buf)
		b.buf = grown
	}
	return nil
}

// wait takes n of a budget. Only the waiting counts against its bound, not the
// time that a body takes to arrive in between. Those who wait hold a connection
// each, so there is a bound on them too.
func (b *body) wait(ctx context.Context, budget *semaphore.Weighted, n int64) error {
	if budget.TryAcquire(n) {
		return nil
	}
	waiting := &b.owner.waiting[b.line]
	defer waiting.Add(-1)
	if waiting.Add(1) > b.owner.maxWaiting {
		return errBusy
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, b.left, errBusy)
	defer cancel()
	if err := budget.Acquire(ctx, n); err != nil {
		return context.Cause(ctx)
	}
	b.left -= time.Since(began)
	return nil
}

// buffer returns an empty buffer with room for n bytes.
func (bs *bodies) buffer(n int64) *[]byte {
	class, size := classOf(n)
	if class < 0 {
		size = n
	} else if buf, ok := bs.pools[class].Get().(*[]byte); ok {
		return buf
	}
	buf := make([]byte, 0, size)
	return &buf
}

func (bs *bodies) recycle(buf *[]byte) {
	if class, size := classOf(int64(cap(*buf))); size == int64(cap(*buf)) {
		*buf = (*buf)[:0]
		bs.pools[class].Put(buf)
	}
}

// classOf is the smallest pool whose buffers hold n bytes, or -1.
func classOf(n int64) (class int, size int64) {
	size = smallestClass
	for class := range classes {
		if n <= size {
			return class, size
		}
		size *= 4
	}
	return -1, 0
}

// transferTime is how long n bytes may take on the slowest line that is accepted.
func transferTime(n int64) time.Duration { return time.Duration(n/slowestRate) * time.Second }
