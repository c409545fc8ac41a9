package wire

import "time"

// Refusal is a request on keys, timers or switches that is not carried out. Clients
// branch on the code and may read the reason; the detail is for people.
//
//nolint:errname // it is an answer, named for what became of the request
type Refusal struct {
	Status int
	Code   string // "error" of the envelope, kv_bad_request for one
	Reason string // which of the code's reasons, "" for none
	Detail string // what is wrong, and what is allowed
	// RetryAfter is when the request may be sent again; the header carries whole
	// seconds, rounded up. Zero leaves it out.
	RetryAfter time.Duration
	// Hint goes into the header x-queen-timers-hint, unless it is empty.
	Hint string
	// Cause is what failed, for logs; nil when nothing has.
	Cause error
}

// Codes that the families of keys and timers share.
const (
	CodeRateLimited     = "rate_limited"
	CodeFeatureGated    = "feature_gated"
	CodePayloadTooLarge = "payload_too_large"
)

// Error implements error.
func (r *Refusal) Error() string {
	text := r.Code
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}

// Unwrap gives the cause.
func (r *Refusal) Unwrap() error { return r.Cause }

// RetrySeconds is RetryAfter as the header carries it, 0 for none.
func (r *Refusal) RetrySeconds() int {
	if r.RetryAfter <= 0 {
		return 0
	}
	return int((r.RetryAfter + time.Second - 1) / time.Second)
}

// AppendRefusal renders the envelope of a refusal. Reason and detail are left out
// when they are empty.
func AppendRefusal(dst []byte, r *Refusal) []byte {
	dst = append(dst, `{"error":`...)
	dst = appendString(dst, r.Code)
	if r.Reason != "" {
		dst = append(dst, `,"reason":`...)
		dst = appendString(dst, r.Reason)
	}
	if r.Detail != "" {
		dst = append(dst, `,"detail":`...)
		dst = appendString(dst, r.Detail)
	}
	return append(dst, '}')
}
