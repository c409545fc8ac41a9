package kv

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

// Store carries out operations on keys. It has a pool of its own.
type Store interface {
	KVApply(ctx context.Context, tenant uuid.UUID, ops json.RawMessage) (store.RawJSON, error)
	KVTogether(ctx context.Context, tenant uuid.UUID, ops json.RawMessage) (store.RawJSON, error)
	KVList(ctx context.Context, tenant uuid.UUID, p store.KVPage) (store.RawJSON, error)
	KVNamespaces(ctx context.Context, tenant uuid.UUID) (store.RawJSON, error)
}

// Gate decides what tenants may do.
type Gate interface {
	KV(tenant uuid.UUID, d quota.KVDemand) (*quota.Charge, error)
	KVPoolRefused(reads, writes bool)
}

// Config holds the bounds of the service.
type Config struct {
	Limits    Limits
	PageLimit int // rows of a page (default 1000, the most that the database gives)
	// ShedAfter is how many calls in a row may find no connection before writes are
	// turned away (default 5).
	ShedAfter int
	// Flights is how many calls may be under way that carry single operations, while
	// others wait to share the next one (default 12). Negative: every call goes alone.
	Flights int
}

// Deps are what a Service works with.
type Deps struct {
	Store Store
	Gate  Gate
	Meter metric.Meter
}

// Service carries out operations on keys outside of transactions. It is safe for
// concurrent use.
type Service struct {
	cfg     Config
	store   Store
	gate    Gate
	shed    shed
	fuser   *fuser // nil: every call goes alone
	metrics *metrics
}

// New returns a Service. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*Service, error) {
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits()
	}
	if cfg.PageLimit == 0 {
		cfg.PageLimit = pageMax
	}
	if cfg.ShedAfter == 0 {
		cfg.ShedAfter = ShedAfterDefault
	}
	s := &Service{cfg: cfg, store: deps.Store, gate: deps.Gate, shed: shed{after: int64(cfg.ShedAfter)}}
	coalesced := func() int64 { return 0 }
	if cfg.Flights >= 0 {
		s.fuser = newFuser(deps.Store, cmp.Or(cfg.Flights, FlightsDefault))
		coalesced = s.fuser.coalesced.Load
	}
	var err error
	s.metrics, err = newMetrics(deps.Meter, &s.shed, coalesced)
	return s, err
}

// Answer is what became of operations: results by position, or a required write that
// was not applied, and with it nothing.
type Answer struct {
	Results json.RawMessage // an array
	Lost    *wire.KVLost
}

// nothing is the answer to no operations.
const nothing = `[]`

// Apply carries out operations of one tenant, all of them or none. The error is a
// *wire.Refusal.
func (s *Service) Apply(ctx context.Context, tenant uuid.UUID, ops json.RawMessage) (Answer, error) {
	in, err := inspect(ops, s.cfg.Limits)
	if err != nil {
		return Answer{}, err
	}
	d := in.Demand
	if in.kinds[getPrefix] > 0 && s.cfg.PageLimit < pageMax {
		ops = clampPages(ops, s.cfg.PageLimit)
	}
	charge, err := s.gate.KV(tenant, d.Quota(false))
	if err != nil {
		return Answer{}, err
	}
	if d.Ops == 0 {
		return Answer{Results: json.RawMessage(nothing)}, nil
	}
	if d.Writes > 0 && s.shed.on() {
		charge.Refund()
		s.gate.KVPoolRefused(d.Reads > 0, true)
		return Answer{}, paused()
	}
	began := time.Now()
	// A client that leaves does not stop a call: it would cost a connection.
	results, err := s.call(context.WithoutCancel(ctx), tenant, ops, &in)
	answer, err := s.settle(d, results, err)
	if err != nil || answer.Lost != nil {
		s.refund(charge, err)
	}
	s.metrics.done(in.kinds, outcomeOf(answer, err), time.Since(began))
	s.metrics.moved(len(ops), len(answer.Results))
	return answer, err
}

// Carried counts operations that a transaction has carried out.
func (s *Service) Carried(ops int) {
	s.metrics.operations.Add(context.Background(), int64(ops), s.metrics.carried...)
}

// call has the database carry out operations, single ones together with others.
func (s *Service) call(ctx context.Context, tenant uuid.UUID, ops json.RawMessage, in *inspection) (store.RawJSON, error) {
	if one, ok := in.single(); ok && s.fuser != nil {
		return s.fuser.do(ctx, tenant, ops, one)
	}
	return s.store.KVApply(ctx, tenant, ops)
}

// refund gives a charge back, unless the call may have been carried out.
func (s *Service) refund(c *quota.Charge, err error) {
	var r *wire.Refusal
	if errors.As(err, &r) && r.Status >= http.StatusInternalServerError && store.Ambiguous(r.Cause) {
		return
	}
	c.Refund()
}

// settle turns what the store answers into an answer or a refusal.
func (s *Service) settle(d Demand, results store.RawJSON, err error) (Answer, error) {
	s.pool(d, err)
	var lost *store.KVPrecondition
	switch {
	case errors.As(err, &lost):
		return Answer{Lost: &wire.KVLost{Known: lost.Known, Index: lost.Index, Reason: lost.Reason, Version: lost.Version, Value: lost.Value}}, nil
	case err != nil:
		return Answer{}, refusal(err)
	case len(results) == 0 || string(results) == "null":
		return Answer{}, misread("kv_result_missing", "the database answered nothing")
	case results[0] != '[':
		return Answer{}, misread("kv_result_unreadable", "the database answered something else than an array")
	}
	return Answer{Results: results}, nil
}

// List is one page of a namespace for the console. It counts as one read.
func (s *Service) List(ctx context.Context, tenant uuid.UUID, p store.KVPage) (store.RawJSON, error) {
	if p.Limit > s.cfg.PageLimit || p.Limit == 0 && s.cfg.PageLimit < pageDefault {
		p.Limit = s.cfg.PageLimit
	}
	return s.console(tenant, func() (store.RawJSON, error) { return s.store.KVList(ctx, tenant, p) })
}

// Namespaces are the namespaces of a tenant. It counts as one read.
func (s *Service) Namespaces(ctx context.Context, tenant uuid.UUID) (store.RawJSON, error) {
	return s.console(tenant, func() (store.RawJSON, error) { return s.store.KVNamespaces(ctx, tenant) })
}

func (s *Service) console(tenant uuid.UUID, read func() (store.RawJSON, error)) (store.RawJSON, error) {
	d := Demand{Ops: 1, Reads: 1}
	if _, err := s.gate.KV(tenant, d.Quota(false)); err != nil {
		return nil, err
	}
	out, err := read()
	s.pool(d, err)
	switch {
	case err != nil:
		return nil, refusal(err)
	case len(out) == 0 || string(out) == "null":
		return nil, misread("kv_result_missing", "the database answered nothing")
	}
	return out, nil
}
