// Package e2e_test drives a built broker over HTTP against a private
// PostgreSQL and checks what a client can observe.
package e2e_test

import (
	cryptorand "crypto/rand"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m))
}

const (
	zeroUUID = "00000000-0000-0000-0000-000000000000"

	committedText  = "already committed: the cursor moved past this message before this ack"
	unresolvedText = "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers"
	leaseText      = "invalid or expired lease"
)

// shared answers the common broker and a queue name of this test alone.
func shared(t *testing.T) (*harness.Broker, string) {
	t.Helper()
	return harness.Shared(t), queueName(t)
}

// queueName is unique and holds no dot, so that it derives no task.
func queueName(t *testing.T) string {
	t.Helper()
	name := regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(t.Name(), "-")
	return name[:min(len(name), 80)] + "-" + cryptorand.Text()[:8]
}

// seeded is a source of randomness; its seed is printed with a failure.
// QUEEN_TEST_SEED repeats a run.
func seeded(t *testing.T) (*rand.Rand, uint64) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("QUEEN_TEST_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with QUEEN_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1)), seed
}

// numbers are the JSON texts of from to to-1, the payloads of PushEach.
func numbers(from, to int) []string {
	out := make([]string, 0, max(0, to-from))
	for i := from; i < to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

// lanes are n partition names.
func lanes(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("lane-%02d", i)
	}
	return out
}

// requireUUIDv7 requires a time-ordered id in its canonical text form.
func requireUUIDv7(t testing.TB, id string) {
	t.Helper()
	require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id)
}

// requireKeys requires exactly these members of a JSON object.
func requireKeys(t testing.TB, object map[string]any, keys ...string) {
	t.Helper()
	got := make([]string, 0, len(object))
	for k := range object {
		got = append(got, k)
	}
	slices.Sort(got)
	slices.Sort(keys)
	require.Equal(t, keys, got)
}

// repeat is a text of n bytes that does not compress to nothing.
func repeat(n int) string {
	const unit = "the quick brown fox jumps over the lazy dog 0123456789 "
	return strings.Repeat(unit, n/len(unit)+1)[:n]
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}
