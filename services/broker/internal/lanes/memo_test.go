package lanes_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/lanes"
)

func TestMemoForgetsTheLeastRecentlyUsed(t *testing.T) {
	t.Parallel()
	m, err := lanes.NewMemo(2)
	require.NoError(t, err)
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	m.Put(a, lanes.Lane{Queue: "q", Partition: "a"})
	m.Put(b, lanes.Lane{Queue: "q", Partition: "b"})
	_, ok := m.Get(a)
	require.True(t, ok)
	m.Put(c, lanes.Lane{Queue: "q", Partition: "c"})
	_, ok = m.Get(b)
	require.False(t, ok)
	lane, ok := m.Get(a)
	require.True(t, ok)
	require.Equal(t, "a", lane.Partition)
}

func TestMemoKeepsAKnownQueueAgainstADiscoveredLane(t *testing.T) {
	t.Parallel()
	m, err := lanes.NewMemo(2)
	require.NoError(t, err)
	id := uuid.New()
	m.Put(id, lanes.Lane{Partition: "a"})
	m.Put(id, lanes.Lane{Queue: "q", Partition: "a"})
	m.Put(id, lanes.Lane{Partition: "a"})
	lane, ok := m.Get(id)
	require.True(t, ok)
	require.Equal(t, "q", lane.Queue)
}

func TestMemoRefusesAnImpossibleSize(t *testing.T) {
	t.Parallel()
	_, err := lanes.NewMemo(0)
	require.Error(t, err)
}

func TestParseID(t *testing.T) {
	t.Parallel()
	const canonical = "0199aa10-1111-7abc-8def-000000000001"
	for _, text := range []string{canonical, "0199AA10-1111-7ABC-8DEF-000000000001", "{" + canonical + "}"} {
		id, err := lanes.ParseID(text)
		require.NoError(t, err)
		require.Equal(t, canonical, id.String())
	}
	for _, text := range []string{"", "x", "urn:uuid:" + canonical, canonical + "0"} {
		_, err := lanes.ParseID(text)
		require.EqualError(t, err, `invalid input syntax for type uuid: "`+text+`"`)
	}
}
