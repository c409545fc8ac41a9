package wire

import (
	"encoding/json"
	"math"
	"strconv"
)

// DefaultExtendSeconds is how far a lease is extended when the body says nothing.
const DefaultExtendSeconds = 60

// ParseExtend reads the body of a lease extension. It never fails: whatever
// does not say a number of seconds means the default.
func ParseExtend(body []byte) int {
	var req struct {
		Seconds *float64 `json:"seconds"`
	}
	if json.Unmarshal(body, &req) != nil || req.Seconds == nil {
		return DefaultExtendSeconds
	}
	return int(max(1, min(*req.Seconds, math.MaxInt32)))
}

// ExtendResult is the outcome of a lease extension.
type ExtendResult struct {
	LeaseID   string
	Renewed   int
	ExpiresAt string // earliest expiry among the renewed, "" without any
}

// AppendExtendResult renders the answer of a lease extension.
func AppendExtendResult(dst []byte, r ExtendResult) []byte {
	dst = append(dst, `{"leaseId":`...)
	dst = appendString(dst, r.LeaseID)
	dst = append(dst, `,"success":`...)
	dst = appendBool(dst, r.Renewed > 0)
	dst = append(dst, `,"renewed":`...)
	dst = strconv.AppendInt(dst, int64(r.Renewed), 10)
	for _, key := range []string{"newExpiresAt", "expiresAt", "lease_expires_at"} {
		dst = append(dst, `,"`...)
		dst = append(dst, key...)
		dst = append(dst, `":`...)
		dst = appendOptional(dst, r.ExpiresAt)
	}
	return append(dst, '}')
}
