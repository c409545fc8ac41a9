package wire_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestRefusalIsAnsweredWithWhatItHas(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refusal    wire.Refusal
		body, text string
	}{
		"a code alone": {
			wire.Refusal{Status: http.StatusForbidden, Code: wire.CodeFeatureGated},
			`{"error":"feature_gated"}`, "feature_gated",
		},
		"a reason": {
			wire.Refusal{Code: "kv_unavailable", Reason: "kv_timeout"},
			`{"error":"kv_unavailable","reason":"kv_timeout"}`, "kv_unavailable: kv_timeout",
		},
		"a detail that needs escapes": {
			wire.Refusal{Code: "kv_bad_request", Reason: "kv_bad_key", Detail: `key "a"`},
			`{"error":"kv_bad_request","reason":"kv_bad_key","detail":"key \"a\""}`, `kv_bad_request: kv_bad_key: key "a"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.JSONEq(t, tc.body, string(wire.AppendRefusal(nil, &tc.refusal)))
			require.EqualError(t, &tc.refusal, tc.text)
		})
	}
}

func TestRetryIsInWholeSecondsRoundedUp(t *testing.T) {
	t.Parallel()
	for after, seconds := range map[time.Duration]int{
		-time.Second: 0, 0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, math.MaxInt64 - time.Second: 9223372036,
	} {
		require.Equal(t, seconds, (&wire.Refusal{RetryAfter: after}).RetrySeconds(), after)
	}
}
