package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	kvClients = 32
	// kvGets and kvIncrs are percent of all operations; the rest is putIfAbsent.
	kvGets  = 30
	kvIncrs = 60

	counterPrefix = "counter-"
	oncePrefix    = "once-"
)

// unlimited switches the rate limits off, and gives the broker as many connections for
// keys as there are clients.
var unlimited = []string{
	"QUEEN_KV_READ_RATE=0", "QUEEN_KV_WRITE_RATE=0", "QUEEN_KV_CELL_RATE=0", "QUEEN_KV_POOL_SIZE=" + strconv.Itoa(kvClients),
}

// seedCounters makes the counters of a namespace, all at 0.
const seedCounters = `INSERT INTO queen.kv (namespace, key, value, version)
	SELECT $1, $2 || i, '0', nextval('queen.kv_version_seq') FROM generate_series(0, $3::int - 1) AS i`

func (s *stack) seedKeys(ctx context.Context, namespaces []string, keys int) error {
	progress("  making %d keys", len(namespaces)*keys)
	for _, ns := range namespaces {
		if _, err := s.db.Exec(ctx, seedCounters, ns, counterPrefix, keys); err != nil {
			return fmt.Errorf("make keys: %w", err)
		}
	}
	_, err := s.db.Exec(ctx, "VACUUM (ANALYZE) queen.kv")
	return err
}

// counted is the sum of the counters of a namespace.
func (s *stack) counted(ctx context.Context, ns string) (n int64, err error) {
	const q = `SELECT sum((value #>> '{}')::numeric)::bigint FROM queen.kv WHERE namespace = $1 AND starts_with(key, $2)`
	err = s.db.QueryRow(ctx, q, ns, counterPrefix).Scan(&n)
	return n, err
}

// kvLoad is a load of key/value operations.
type kvLoad struct {
	ns      string
	keys    int
	ops     int // per call
	clients int
	incrs   atomic.Int64 // that were answered
}

// kvRun is one run of it. A message is an operation.
type kvRun struct {
	*kvLoad
	addrs []string
	done  *tally
}

func (l *kvLoad) prepare(s *stack) *kvRun {
	return &kvRun{kvLoad: l, addrs: s.addrs(), done: newTally()}
}

func (r *kvRun) counts() (pushed, acked int64) { return r.done.messages.Load(), 0 }

func (r *kvRun) run(ctx context.Context, stop <-chan struct{}, w *window) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-stop:
		case <-ctx.Done():
		}
		cancel()
	}()
	drive(ctx, loop{workers: r.clients, sender: r.caller}, w, r.done)
}

func (r *kvRun) report(b *block) {
	b.push, b.failures, b.err = r.done.latency, r.done.failures.Load(), r.done.err
}

// caller is one client.
func (r *kvRun) caller(worker int) sender {
	c := newClient(r.addrs, worker)
	rng := newRand(int(time.Now().UnixNano()) + worker)
	var body, request []byte
	return func(ctx context.Context, _ int, _ time.Time) (int, error) {
		var want kvCounts
		body, want = r.appendCall(body[:0], rng)
		request = append(appendHead(request[:0], http.MethodPost, "/api/v1/kv", len(body)), body...)
		a, err := c.expect(ctx, request, http.StatusOK)
		if err != nil {
			return 0, err
		}
		if got := countResults(a.body); !got.answers(want) {
			return 0, unexpected(request, a)
		}
		r.incrs.Add(int64(want.incrs))
		return r.ops, nil
	}
}

// kvCounts are operations, or results, by their kind.
type kvCounts struct{ gets, incrs, puts int }

// answers says that the results are those of the operations: every key that is read is
// there, every increment was applied. A put may have come too late.
func (c kvCounts) answers(asked kvCounts) bool {
	return c.gets == asked.gets && c.incrs >= asked.incrs && c.incrs+c.puts == asked.incrs+asked.puts
}

// The results are as PostgreSQL writes them, with a blank behind a colon.
var (
	foundMark   = []byte(`"found": true`)
	appliedMark = []byte(`"applied": true`)
	refusedMark = []byte(`"reason": "exists"`)
)

// countResults counts applied puts among the increments: they look alike.
func countResults(body []byte) kvCounts {
	return kvCounts{
		gets: bytes.Count(body, foundMark), incrs: bytes.Count(body, appliedMark), puts: bytes.Count(body, refusedMark),
	}
}

// appendCall appends the body of a call. Its keys lie evenly apart, since a key may be
// written once in a call.
func (l *kvLoad) appendCall(dst []byte, rng *rand.Rand) ([]byte, kvCounts) {
	var n kvCounts
	first, apart := rng.IntN(l.keys), l.keys/l.ops
	dst = append(dst, `{"operations":[`...)
	for i := range l.ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = l.appendOperation(dst, &n, rng.IntN(100), (first+i*apart)%l.keys)
	}
	return append(dst, `]}`...), n
}

func (l *kvLoad) appendOperation(dst []byte, n *kvCounts, dice, key int) []byte {
	op, prefix, more := "putIfAbsent", oncePrefix, `,"value":true,"forever":true`
	switch {
	case dice < kvGets:
		op, prefix, more = "get", counterPrefix, ""
		n.gets++
	case dice < kvGets+kvIncrs:
		op, prefix, more = "incr", counterPrefix, `,"delta":1,"forever":true`
		n.incrs++
	default:
		n.puts++
	}
	dst = append(dst, `{"op":"`...)
	dst = append(dst, op...)
	dst = append(dst, `","ns":"`...)
	dst = append(dst, l.ns...)
	dst = append(dst, `","key":"`...)
	dst = append(dst, prefix...)
	dst = strconv.AppendInt(dst, int64(key), 10)
	dst = append(dst, '"')
	dst = append(dst, more...)
	return append(dst, '}')
}
