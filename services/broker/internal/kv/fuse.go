package kv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/spans"
)

// Defaults of the flights of a Service, and the bounds of one.
const (
	FlightsDefault = 12

	flightOps   = 32
	flightBytes = 256 << 10
	// flightPatience is how long an operation waits for a flight before it goes alone.
	flightPatience = time.Second
	// flightStuck is after how long a flight, which then waits for a row or for
	// a connection, does not count as one of those under way.
	flightStuck = 100 * time.Millisecond
)

// fuser lets operations on single keys that meet share a call of the database: most
// of what a call costs there is not its statement. A few flights are under way at
// once. Who finds one free departs at once, alone; who does not waits until one
// lands, and departs with whoever waits by then. There is no timer, and an operation
// that meets no other is as fast as without.
//
// A key is written by one flight at a time, so that increments of a hot counter queue
// here and not for its row. What is refused in company is repeated alone: each caller
// hears of its own operation and of nothing else.
type fuser struct {
	store   Store
	flights int
	seed    maphash.Seed

	coalesced atomic.Int64 // operations that went along with another

	mu      sync.Mutex
	flying  int
	waiting []*passenger
	written map[uint64]struct{} // keys of the flights under way
}

// passenger is one operation.
type passenger struct {
	tenant uuid.UUID
	op     []byte // the object
	key    uint64 // of a write: its name, hashed
	writes bool
	span   trace.Span // of the request; nil when nobody records it

	ready  chan struct{} // closed when it is answered, or has to lead
	leads  []*passenger  // itself and who goes along
	answer store.RawJSON // an array of one
	err    error
}

// errAlone tells a passenger to repeat its operation by itself.
var errAlone = errors.New("repeat it alone")

func newFuser(st Store, flights int) *fuser {
	return &fuser{store: st, flights: flights, seed: maphash.MakeSeed(), written: map[uint64]struct{}{}}
}

// do carries out ops, an array of the one operation that s is about.
func (f *fuser) do(ctx context.Context, tenant uuid.UUID, ops json.RawMessage, s single) (store.RawJSON, error) {
	p := &passenger{tenant: tenant, op: elements(ops), writes: s.writes, span: spans.Of(ctx), ready: make(chan struct{})}
	if p.writes {
		p.key = f.hash(tenant, s)
	}
	if !f.board(p) {
		f.wait(p)
	}
	if p.leads != nil {
		f.fly(ctx, p.leads, ops)
	}
	if errors.Is(p.err, errAlone) {
		return f.store.KVApply(ctx, tenant, ops)
	}
	return p.answer, p.err
}

// board lets a passenger lead a flight of its own if one is free.
func (f *fuser) board(p *passenger) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flying < f.flights && f.free(p) {
		f.flying++
		f.take(p)
		p.leads = []*passenger{p}
		return true
	}
	f.waiting = append(f.waiting, p)
	return false
}

// wait returns when the passenger is answered, leads, or has to go alone.
func (f *fuser) wait(p *passenger) {
	limit := time.NewTimer(flightPatience)
	defer limit.Stop()
	select {
	case <-p.ready:
		return
	case <-limit.C:
	}
	f.mu.Lock()
	at := slices.Index(f.waiting, p)
	if at >= 0 {
		f.waiting = slices.Delete(f.waiting, at, at+1)
		p.err = errAlone
	}
	f.mu.Unlock()
	if at < 0 { // it has departed
		<-p.ready
	}
}

// fly carries out the operations of a flight, and then hands it on.
func (f *fuser) fly(ctx context.Context, all []*passenger, first json.RawMessage) {
	var left sync.Once
	leave := func() { left.Do(f.leave) }
	stuck := time.AfterFunc(flightStuck, leave)
	defer func() {
		stuck.Stop()
		f.land(all)
		leave()
	}()
	if len(all) == 1 {
		all[0].answer, all[0].err = f.store.KVApply(ctx, all[0].tenant, first)
		return
	}
	ops := make([]byte, 0, flightBytes/8)
	for i, p := range all {
		if i == 0 {
			ops = append(ops, '[')
		} else {
			ops = append(ops, ',')
		}
		ops = append(ops, p.op...)
	}
	ctx, span := startFlight(ctx, all)
	defer span.End()
	results, err := f.store.KVTogether(ctx, all[0].tenant, append(ops, ']'))
	spans.Fail(ctx, err)
	if err == nil {
		err = distribute(results, all)
	}
	if err == nil {
		f.coalesced.Add(int64(len(all) - 1))
		return
	}
	if repeatable(err) {
		err = errAlone
	}
	for _, p := range all {
		p.answer, p.err = nil, err
	}
}

// opsKey is the attribute of how many operations a flight carries out.
const opsKey = attribute.Key("queen.operations")

// startFlight begins the span of a call that several operations share.
func startFlight(ctx context.Context, all []*passenger) (context.Context, trace.Span) {
	var requests spans.Set
	for _, p := range all {
		requests.Add(p.span)
	}
	ctx, span := requests.Start(ctx, "keys flight")
	if span.IsRecording() {
		span.SetAttributes(opsKey.Int(len(all)))
	}
	return ctx, span
}

// repeatable says that nothing was carried out, for a reason that need not concern
// every operation of the flight.
func repeatable(err error) bool {
	var refused *store.KVRefused
	return errors.As(err, &refused) || !store.Ambiguous(err) && !errors.Is(err, pgdb.ErrPool)
}

// land answers the passengers.
func (f *fuser) land(all []*passenger) {
	f.mu.Lock()
	for _, p := range all {
		if p.writes {
			delete(f.written, p.key)
		}
	}
	f.mu.Unlock()
	for _, p := range all[1:] {
		close(p.ready)
	}
}

// leave ends a flight and lets those depart who can.
func (f *fuser) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flying--
	for f.flying < f.flights {
		next := f.gather()
		if next == nil {
			break
		}
		f.flying++
		next[0].leads = next
		close(next[0].ready)
	}
}

// gather takes those who go together, the longest waiting first.
func (f *fuser) gather() []*passenger {
	var all []*passenger
	bytes, rest := 0, f.waiting[:0]
	for _, p := range f.waiting {
		fits := len(all) == 0 || len(all) < flightOps && p.tenant == all[0].tenant && bytes+len(p.op) <= flightBytes
		if !fits || !f.free(p) {
			rest = append(rest, p)
			continue
		}
		f.take(p)
		bytes += len(p.op)
		all = append(all, p)
	}
	clear(f.waiting[len(rest):])
	f.waiting = rest
	return all
}

// free says whether no flight under way writes the key.
func (f *fuser) free(p *passenger) bool {
	_, taken := f.written[p.key]
	return !p.writes || !taken
}

func (f *fuser) take(p *passenger) {
	if p.writes {
		f.written[p.key] = struct{}{}
	}
}

func (f *fuser) hash(tenant uuid.UUID, s single) uint64 {
	var h maphash.Hash
	h.SetSeed(f.seed)
	_, _ = h.Write(tenant[:])
	_, _ = h.Write(s.namespace)
	_, _ = h.Write(s.key)
	return h.Sum64()
}

// elements is what an array holds.
func elements(array []byte) []byte {
	trimmed := bytes.TrimSpace(array)
	return bytes.TrimSpace(trimmed[1 : len(trimmed)-1])
}

// distribute gives each passenger its element, as if it had been alone.
func distribute(results store.RawJSON, to []*passenger) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(results))
	if _, err := dec.ReadToken(); err != nil {
		return fmt.Errorf("read the results: %w", err)
	}
	for i, p := range to {
		element, err := dec.ReadValue()
		if err != nil {
			return fmt.Errorf("read result %d: %w", i, err)
		}
		p.answer, err = alone(element, i)
		if err != nil {
			return fmt.Errorf("read result %d: %w", i, err)
		}
	}
	if dec.PeekKind() != ']' {
		return errors.New("more results than operations")
	}
	return nil
}

// alone is the array that a result would be in if its operation had been the only
// one: its member "index" tells the place.
func alone(element []byte, index int) (store.RawJSON, error) {
	at, err := valueOffset(element, "index")
	if err != nil {
		return nil, err
	}
	digits := strconv.Itoa(index)
	if !bytes.HasPrefix(element[at:], []byte(digits)) {
		return nil, fmt.Errorf("it is not that of operation %d", index)
	}
	out := make([]byte, 0, len(element)+2)
	out = append(append(append(out, '['), element[:at]...), '0')
	return append(append(out, element[at+len(digits):]...), ']'), nil
}

// valueOffset is where the value of a member begins.
func valueOffset(object []byte, name string) (int, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(object))
	if _, err := dec.ReadToken(); err != nil {
		return 0, fmt.Errorf("read an object: %w", err)
	}
	for dec.PeekKind() == '"' {
		member, err := dec.ReadValue()
		if err != nil {
			return 0, fmt.Errorf("read the name of a member: %w", err)
		}
		found := string(unquoted(member)) == name
		value, err := dec.ReadValue()
		if err != nil {
			return 0, fmt.Errorf("read a member: %w", err)
		}
		if found {
			return int(dec.InputOffset()) - len(value), nil
		}
	}
	return 0, fmt.Errorf("it has no %q", name)
}
