package transact

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/kv"
	"github.com/queenmq/queen/services/broker/internal/quota"
	"github.com/queenmq/queen/services/broker/internal/timers"
)

// Quota decides what a tenant may do with keys and timers. The charges are kept by
// bundles that have committed, or may have.
type Quota interface {
	KV(tenant uuid.UUID, d quota.KVDemand) (*quota.Charge, error)
	Timers(tenant uuid.UUID, d quota.TimersDemand) (*quota.Charge, error)
}

// Timers makes operations on timers ready for the database. The message ids that it
// mints are part of them, so that every submission of a bundle promises the same.
type Timers interface {
	Prepare(tenant uuid.UUID, ops json.RawMessage, rider bool) (timers.Prepared, error)
}

// riders are the operations on keys and timers that share the fate of a bundle.
type riders struct {
	kv      json.RawMessage
	keys    kv.Demand
	timers  timers.Prepared
	charges []*quota.Charge
	began   time.Time // the last submission
}

// soonest is how long it is until the first of the timers is due. The delays count from
// the start of the transaction, which was later than that of its submission.
func (r *riders) soonest() time.Duration { return max(r.timers.Soonest-time.Since(r.began), 0) }

// board checks the riders of a request and charges the tenant for them; nil when
// there are none. The checks come first: what can never be carried out is refused
// whatever the switches say.
func (s *Service) board(tenant uuid.UUID, req *wire.TxRequest) (*riders, error) {
	if !req.HasRiders() {
		return nil, nil //nolint:nilnil // most bundles have none
	}
	r := &riders{kv: req.KV}
	var err error
	if r.kv != nil {
		if r.keys, err = kv.Inspect(r.kv, s.limits, true); err != nil {
			return nil, err
		}
	}
	if req.Timers != nil {
		if r.timers, err = s.Timers.Prepare(tenant, req.Timers, true); err != nil {
			return nil, err
		}
	}
	if err := s.charge(tenant, r); err != nil {
		r.refund()
		return nil, err
	}
	return r, nil
}

func (s *Service) charge(tenant uuid.UUID, r *riders) error {
	if r.kv != nil {
		c, err := s.Quota.KV(tenant, r.keys.Quota(true))
		if err != nil {
			return err
		}
		r.charges = append(r.charges, c)
	}
	if r.timers.Count > 0 {
		c, err := s.Quota.Timers(tenant, quota.TimersDemand{Schedules: r.timers.Schedules, Others: r.timers.Others, Rider: true})
		if err != nil {
			return err
		}
		r.charges = append(r.charges, c)
	}
	return nil
}

func (r *riders) refund() {
	for _, c := range r.charges {
		c.Refund()
	}
}

// settle gives the charges back unless the bundle has committed, or may have.
func (r *riders) settle(resp wire.TxResponse, err error) {
	if r != nil && !resp.Success && !errors.Is(err, ErrUnknown) {
		r.refund()
	}
}

// join makes the riders part of what is submitted.
func (r *riders) join(tx *store.Transaction, sub string) {
	if r == nil {
		return
	}
	tx.KV = r.kv
	if r.timers.Count > 0 {
		tx.Timers, tx.ProducerSub = r.timers.Ops, sub
	}
}

// results renders what became of the riders; first is the place of the first one.
func (r *riders) results(first int, out *store.TransactionResult) (text []byte, err error) {
	if r == nil {
		return nil, nil
	}
	for _, part := range []struct {
		kind    string
		want    int
		results json.RawMessage
	}{{wire.RiderKV, r.keys.Ops, out.KV}, {wire.RiderTimer, r.timers.Count, out.Timers.Results}} {
		if part.want == 0 {
			continue
		}
		var n int
		text, n, err = wire.AppendRiderResults(text, part.kind, first, part.results)
		if err == nil && n != part.want {
			err = fmt.Errorf("%d results for %d operations", n, part.want)
		}
		if err != nil {
			return nil, fmt.Errorf("read the results of type %s: %w", part.kind, err)
		}
		first += n
	}
	return text, nil
}

// rolledBack ends the text of every refusal that has its own reason.
const rolledBack = "; transaction rolled back"

// decline answers for riders that were refused before the database saw the bundle.
// What is too large or too far ahead is refused as by the database: with a reason,
// in an answer that is final. What is malformed is a bad request, as in any other
// part of the body. The rest is up to switches, quotas and rates.
func (s *Service) decline(err error) (wire.TxResponse, error) {
	var refusal *wire.Refusal
	if !errors.As(err, &refusal) {
		return wire.TxResponse{}, err
	}
	text := refusal.Detail
	if refusal.Reason != "" {
		text = refusal.Reason + ": " + text
	}
	switch {
	case refusal.Code == wire.CodePayloadTooLarge:
		return s.refusal(wire.ReasonTooLarge, text)
	case refusal.Code == timers.CodeHorizonExceeded:
		return s.refusal(wire.ReasonTimerHorizon, text)
	case refusal.Status == http.StatusBadRequest:
		return wire.TxResponse{}, &wire.Error{Status: refusal.Status, Text: text}
	}
	return wire.TxResponse{}, refusal
}

func (s *Service) refusal(reason, text string) (wire.TxResponse, error) {
	var id [1]uuid.UUID
	if err := s.IDs.Fill(id[:]); err != nil {
		return wire.TxResponse{}, err
	}
	return wire.TxResponse{TransactionID: id[0].String(), Reason: reason, Error: text + rolledBack}, nil
}

// lost is the verdict on a bundle of which a required write was not applied.
func (b *bundle) lost(p *store.KVPrecondition) wire.TxResponse {
	resp := b.refused(wire.ReasonKVPrecondition, "a required kv operation was not applied"+rolledBack)
	resp.Lost = &wire.TxLost{Known: p.Known, Reason: p.Reason, Version: p.Version, Value: p.Value}
	if p.Known {
		resp.Lost.Index = len(b.req.Ops) + p.Index
		resp.Error = fmt.Sprintf("required kv operation %d was not applied: %s%s", p.Index, p.Reason, rolledBack)
	}
	return resp
}
