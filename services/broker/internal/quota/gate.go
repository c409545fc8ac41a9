package quota

import (
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/wire"
)

// Codes and reasons of refusals.
const (
	CodeKVDisabled     = "kv_disabled"
	CodeKVQuota        = "kv_quota_exceeded"
	CodeKVUnavailable  = "kv_unavailable"
	CodeTimersDisabled = "timers_disabled"
	CodeTimersQuota    = "timers_quota_exceeded"
	CodeTimersAbsent   = "timers_unavailable"

	ReasonUnread = "quotas_not_read"
)

// timersHint is what the author of a batch reads that was refused for its schedules.
const timersHint = "cancel with DELETE /api/v1/timers/:queue/:timerKey, which is never refused"

// KVDemand is what a call of key/value operations asks for.
type KVDemand struct {
	Reads, Writes int   // operations
	Rows, Bytes   int64 // upper bounds of what may be created
	Rider         bool  // inside a transaction
}

// TimersDemand is what a call of timer operations asks for.
type TimersDemand struct {
	Schedules int  // schedules and reschedules
	Others    bool // the batch holds something else too
	Rider     bool // inside a transaction
}

// KV lets a call of key/value operations pass or refuses it; the error then is a
// *wire.Refusal. The charge is nil when there is nothing to give back.
func (k *Keeper) KV(id uuid.UUID, d KVDemand) (*Charge, error) {
	refused := func(reason int) { k.metrics.refusedKV(reason, d.Reads > 0, d.Writes > 0) }
	if !k.Switches().KV {
		refused(disabled)
		return nil, switchedOff(CodeKVDisabled, "operations on keys are switched off by an operator", d.Rider)
	}
	return k.pass(id, request{
		noun: "keys", absent: CodeKVUnavailable, quota: CodeKVQuota, refused: refused,
		reads: d.Reads, writes: d.Writes, more: [resources]int64{rows: d.Rows, bytes: d.Bytes},
	})
}

// switchedOff refuses for a while, but for good inside a transaction: its sender would
// otherwise repeat all the rest of it too, and take this broker for a broken one.
func switchedOff(code, detail string, rider bool) *wire.Refusal {
	r := &wire.Refusal{Status: http.StatusServiceUnavailable, Code: code, RetryAfter: pauseRetry, Detail: detail}
	if rider {
		r.Status, r.RetryAfter = http.StatusForbidden, 0
	}
	return r
}

// Timers lets a call of timer operations pass or refuses it, as KV does. Only
// schedules are ever refused, but with them the whole call.
func (k *Keeper) Timers(id uuid.UUID, d TimersDemand) (*Charge, error) {
	if d.Schedules == 0 {
		return nil, nil //nolint:nilnil // nothing is charged, and there is nothing to refuse
	}
	c, err := k.schedule(id, d)
	if err != nil && d.Others && !d.Rider {
		err.Hint = timersHint
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (k *Keeper) schedule(id uuid.UUID, d TimersDemand) (*Charge, *wire.Refusal) {
	if !k.Switches().TimersSchedule {
		k.metrics.refusedTimers(disabled)
		return nil, switchedOff(CodeTimersDisabled,
			"scheduling timers is switched off by an operator; timers that are pending are delivered and can be cancelled", d.Rider)
	}
	return k.admit(id, request{
		noun: "timers", absent: CodeTimersAbsent, quota: CodeTimersQuota, refused: k.metrics.refusedTimers,
		writes: d.Schedules, more: [resources]int64{timers: int64(d.Schedules)},
	})
}

// request is a demand as the gates see it.
type request struct {
	noun          string // for people
	absent, quota string // codes
	refused       func(reason int)
	reads, writes int
	more          [resources]int64
}

// pass is admit with an error that is nil when there is none.
func (k *Keeper) pass(id uuid.UUID, q request) (*Charge, error) {
	c, refusal := k.admit(id, q)
	if refusal != nil {
		return nil, refusal
	}
	return c, nil
}

// admit asks grant, occupancy and rate, in this order.
func (k *Keeper) admit(id uuid.UUID, q request) (*Charge, *wire.Refusal) {
	if refusal := k.granted(id, &q); refusal != nil {
		q.refused(overQuota)
		return nil, refusal
	}
	t := k.tenant(id)
	charge, full, ok := t.occupy(q.more, k.cfg.ReleasePercent)
	if !ok {
		q.refused(overQuota)
		return nil, &wire.Refusal{
			Status: http.StatusForbidden, Code: q.quota, Reason: q.quota,
			Detail: fmt.Sprintf("the quota of %s is used up; reading and deleting stay possible", resourceNames()[full]),
		}
	}
	if refusal := k.paced(t, &q); refusal != nil {
		charge.Refund()
		q.refused(rateLimited)
		return nil, refusal
	}
	return charge, nil
}

// granted asks whether a tenant may use keys and timers at all.
func (k *Keeper) granted(id uuid.UUID, q *request) *wire.Refusal {
	r := k.quotas.Load()
	if r == nil {
		if !k.cfg.RequireGrant {
			return nil
		}
		return &wire.Refusal{
			Status: http.StatusServiceUnavailable, Code: q.absent, Reason: ReasonUnread, RetryAfter: hotFloor,
			Detail: "the quotas of tenants have not been read yet",
		}
	}
	quota := r.quota(id)
	switch {
	case !quota.Enabled:
		return &wire.Refusal{Status: http.StatusForbidden, Code: wire.CodeFeatureGated, Detail: q.noun + " are disabled for this tenant"}
	case k.cfg.RequireGrant && !quota.Granted:
		return &wire.Refusal{Status: http.StatusForbidden, Code: wire.CodeFeatureGated, Detail: q.noun + " are not granted to this tenant"}
	}
	return nil
}

// bucket is one of the buckets that a request takes tokens from.
type bucket struct {
	limiter *rate.Limiter
	n       int
	whose   string
}

// paced takes the tokens of a request.
func (k *Keeper) paced(t *tenant, q *request) *wire.Refusal {
	reads, writes := t.limits()
	take := tokens{now: time.Now()}
	for _, b := range []bucket{
		{reads, q.reads, "the reads of this tenant"}, {writes, q.writes, "the writes of this tenant"}, {k.cell, q.reads + q.writes, "all tenants together"},
	} {
		wait, never := take.take(b.limiter, b.n)
		if wait == 0 && !never {
			continue
		}
		take.giveBack()
		if never {
			wait = k.cfg.Refresh // until the quota can have changed
		}
		return &wire.Refusal{
			Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, RetryAfter: wait,
			Detail: fmt.Sprintf("%g operations per second are allowed for %s", float64(b.limiter.Limit()), b.whose),
		}
	}
	return nil
}
