package retention_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestInstantBeforeTheRetainedWindowStartsAtItsBegin subscribes at instants
// before, inside and after what retention has left.
func TestInstantBeforeTheRetainedWindowStartsAtItsBegin(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 6)
	// 0 to 2 are long gone, 3 is half an hour old, 4 twenty minutes, 5 young.
	x.age(t, 4, 20*time.Minute)
	x.age(t, 3, 10*time.Minute)
	x.age(t, 2, longAgo)
	x.cycle(t)
	x.requireStart(t, 3)
	now := harness.Value[time.Time](t, x.DB, `SELECT now()`)
	for name, c := range map[string]struct {
		back time.Duration
		want []string
	}{
		"before everything":        {2 * longAgo, numbers(3, 6)},
		"where the gone ones were": {longAgo + 10*time.Minute, numbers(3, 6)},
		"inside":                   {25 * time.Minute, numbers(4, 6)},
		"after the old ones":       {10 * time.Minute, numbers(5, 6)},
	} {
		for route, path := range map[string]string{
			"partition": harness.PopPartitionPath(x.queue, lane, ""),
			"queue":     harness.PopPath(x.queue, ""),
		} {
			group := queueName(t)
			p, err := x.TryPop(t.Context(), path+"batch=10&consumerGroup="+group+"&subscriptionFrom="+
				url.QueryEscape(now.Add(-c.back).UTC().Format(time.RFC3339Nano)))
			require.NoError(t, err)
			require.Equal(t, c.want, p.Payloads(), "%s, %s", name, route)
		}
	}
}

// TestEmptiedLaneIsEmptyToEveryGroup subscribes to a lane of which nothing is
// left, from the begin and from an instant, and then pushes.
func TestEmptiedLaneIsEmptyToEveryGroup(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"maxWaitTimeSeconds":3600}`)
	x.push(t, 3)
	x.age(t, 2, longAgo)
	x.cycle(t)
	x.requireStart(t, 3)
	queries := []string{"consumerGroup=a&", "consumerGroup=b&subscriptionFrom=2001-01-01T00:00:00Z&", "consumerGroup=c&subscriptionMode=new&", ""}
	for _, query := range queries {
		x.PopPartition(t, x.queue, lane, query).RequireEmpty(t)
	}
	x.PushQueued(t, harness.Item{Queue: x.queue, Partition: lane, Payload: 3})
	for _, query := range queries {
		require.Equal(t, numbers(3, 4), x.PopPartition(t, x.queue, lane, query+"autoAck=true").Payloads(), query)
	}
	x.requireStart(t, 3)
}
