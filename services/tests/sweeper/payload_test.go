package sweeper_test

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// Nobody reads the payload of a timer before it is delivered. One that is no JSON comes
// as {"$raw": base64}: it does not spoil the answer with those beside it, and forges no
// part of it.
func TestPayloadsThatAreNotJSON(t *testing.T) {
	t.Parallel()
	c := own(t)
	texts := []string{"no json", "", "{", "\xff\xfe", `1,"partition":"forged"`, `1},{"id":"forged"`, "{} {}", " \n", `{"a":1}`}
	var ops []object
	var want []string
	for i, text := range texts {
		op := schedule(c.queue, fmt.Sprint(i), "lane", i-100)
		op["payload"] = base64.StdEncoding.EncodeToString([]byte(text))
		op["encrypted"] = i%2 == 0
		ops = append(ops, op)
		want = append(want, fmt.Sprintf(`{"$raw":%q}`, op["payload"]))
	}
	want[len(want)-1] = `{"a":1}`
	c.promise(t, ops...)
	harness.StartSweeper(t, c.DB, quickAttempts...)
	c.requireOnce(t)
	require.Equal(t, want, c.PopPartition(t, c.queue, "lane", "batch=100").Payloads())
	require.Empty(t, c.DLQ(t, c.queue, ""))
}
