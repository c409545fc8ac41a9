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
	firstChunk  = 64 << 10  // reservation for a body of unknown length, or a large one
	// beginShare is the part of a large body that has to arrive before the rest gets
	// its place, and the part of the budget that there is besides for such beginnings.
	beginShare = 8
	// stride is how much of a body may arrive under one deadline.
	stride = 1 << 20

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
	begin      *semaphore.Weighted // of large bodies that have only begun to arrive
	beginMax   int64
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
		patience: cmp.Or(cfg.BodyPatience, BodyPatienceDefault),
		budget:   semaphore.NewWeighted(cfg.MaxInflightBytes),
		begin:    semaphore.NewWeighted(cfg.MaxInflightBytes / beginShare), beginMax: cfg.MaxInflightBytes / beginShare,
		maxWaiting: int64(cmp.Or(cfg.MaxWaiting, MaxWaitingDefault)),
		maxItems:   cfg.MaxInflightBytes, items: semaphore.NewWeighted(cfg.MaxInflightBytes),
	}
}

// body is one request body. Its bytes are valid until release.
type body struct {
	owner    *bodies
	line     line
	buf      *[]byte       // nil until bytes are reserved
	reserved int64         // of the budget
	begun    int64         // of that for beginnings, until there is a reservation
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
	b.endBegin()
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
	first, most := r.ContentLength, r.ContentLength
	if first < 0 {
		first, most = min(firstChunk, bs.max), bs.max
	}
	src := &arrival{
		src: r.Body, conn: http.NewResponseController(w), patience: bs.patience, stride: min(stride, most),
		expect: r.Header.Get("Expect") != "",
	}
	if err := b.listen(r.Context(), src, first); err != nil {
		return err
	}
	if err := b.reserve(r.Context(), first); err != nil {
		return err
	}
	if err := b.readAll(r.Context(), src, r.ContentLength >= 0); err != nil {
		return err
	}
	// The connection is now watched for the client leaving, without a deadline.
	_ = src.conn.SetReadDeadline(time.Time{})
	return nil
}

// arrival reads a body from a connection, under a deadline that moves on as the body
// does: without one, a few clients that trickle could hold the whole budget.
type arrival struct {
	src      io.Reader
	conn     *http.ResponseController
	patience time.Duration
	stride   int64
	left     int64 // of the stride
	expect   bool  // the client waits to be told to send
}

func (a *arrival) Read(p []byte) (int, error) {
	if a.left <= 0 {
		a.left = a.stride
		until := time.Now().Add(a.patience + transferTime(a.stride))
		_ = a.conn.SetReadDeadline(until)
		if a.expect {
			// Reading answers "100 Continue", and the deadline of the connection's
			// previous response may have passed.
			_ = a.conn.SetWriteDeadline(until)
		}
	}
	n, err := a.src.Read(p)
	a.left -= int64(n)
	return n, err
}

// listen has a large body prove itself: an announcement costs nothing, so only what has
// arrived makes room for more. The room is not of the budget, of which a body takes all
// it needs at once: bodies that hold a part and wait for the rest could wait for each
// other.
func (b *body) listen(ctx context.Context, src io.Reader, length int64) error {
	if length <= firstChunk || firstChunk > b.owner.beginMax {
		return nil
	}
	if err := b.wait(ctx, b.owner.begin, firstChunk); err != nil {
		return err
	}
	for more := int64(firstChunk); ; more = b.begun {
		b.begun += more
		b.owner.inflight.Add(more)
		b.room(b.begun)
		if err := b.readTo(src, b.begun); err != nil {
			return err
		}
		if 2*b.begun > length/beginShare || !b.owner.begin.TryAcquire(b.begun) {
			return nil
		}
	}
}

// endBegin gives back what was taken for the beginning of a body.
func (b *body) endBegin() {
	b.owner.inflight.Add(-b.begun)
	b.owner.begin.Release(b.begun)
	b.begun = 0
}

// readTo reads until n bytes of a body of known length are there.
func (b *body) readTo(src io.Reader, n int64) error {
	have := len(*b.buf)
	got, err := io.ReadFull(src, (*b.buf)[have:n])
	*b.buf = (*b.buf)[:have+got]
	return readError(err)
}

// readError tells a body that ends early from one that cannot be read.
func readError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errCutOff
	}
	return fmt.Errorf("%w: %w", errFraming, err)
}

// readAll reads into the reserved bytes and, for a body of unknown length,
// doubles the reservation as it goes.
func (b *body) readAll(ctx context.Context, src io.Reader, known bool) error {
	if known {
		return b.readTo(src, b.reserved)
	}
	for {
		if have := int64(len(*b.buf)); have == b.reserved {
			more := min(b.reserved, b.owner.max-b.reserved)
			if more == 0 {
				return expectEnd(src)
			}
			if err := b.reserve(ctx, more); err != nil {
				return err
			}
		}
		n, err := src.Read((*b.buf)[len(*b.buf):b.reserved])
		*b.buf = (*b.buf)[:len(*b.buf)+n]
		switch {
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
// that requests which wait for their turn hold no memory but that of a beginning.
func (b *body) reserve(ctx context.Context, n int64) error {
	if err := b.wait(ctx, b.owner.budget, n); err != nil {
		return err
	}
	b.reserved += n
	b.owner.inflight.Add(n)
	b.room(b.reserved)
	b.endBegin()
	return nil
}

// room makes the buffer large enough for n bytes.
func (b *body) room(n int64) {
	switch {
	case b.buf == nil:
		b.buf = b.owner.buffer(n)
	case int64(cap(*b.buf)) < n:
		grown := b.owner.buffer(n)
		*grown = append(*grown, *b.buf...)
		b.owner.recycle(b.buf)
		b.buf = grown
	}
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
