package hints_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/hints"
)

// clean hides the variables of whoever runs the tests.
func clean(t *testing.T, pairs ...string) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "QUEEN_") {
			t.Setenv(name, "") // restores it afterwards
			require.NoError(t, os.Unsetenv(name))
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		t.Setenv(pairs[i], pairs[i+1])
	}
}

func TestDefaults(t *testing.T) {
	clean(t)
	var got hints.Config
	require.NoError(t, config.Load(&got))
	require.Equal(t, hints.Config{
		Enabled: true, Port: 6633, BindAddr: "0.0.0.0", Heartbeat: time.Second, DeadThreshold: 5 * time.Second,
	}, got)
	require.False(t, got.On(), "there is no pool without peers")
}

func TestOldNamesAreRead(t *testing.T) {
	clean(t, "QUEEN_UDP_PEERS", "a,b", "QUEEN_UDP_NOTIFY_PORT", "7000", "QUEEN_BIND_ADDR", "10.0.0.1")
	var got hints.Config
	require.NoError(t, config.Load(&got))
	require.Equal(t, "a,b", got.Peers)
	require.Equal(t, 7000, got.Port)
	require.Equal(t, "10.0.0.1", got.BindAddr)
	require.True(t, got.On())
	got.Enabled = false
	require.False(t, got.On())

	clean(t, "QUEEN_MESH_PEERS", " , ,")
	require.NoError(t, config.Load(&got))
	require.False(t, got.On())
}

func TestProblemsAreNamedTogether(t *testing.T) {
	clean(t, "QUEEN_SYNC_ENABLED", "perhaps", "QUEEN_MESH_PEERS", "good, not good,:9", "QUEEN_MESH_PORT", "70000",
		"QUEEN_MESH_BIND_ADDR", "10.0.0.1:9", "QUEEN_MESH_ADVERTISE_HOST", "a b", "QUEEN_SYNC_HEARTBEAT_MS", "3000",
		"QUEEN_SYNC_DEAD_THRESHOLD_MS", "5999")
	var got hints.Config
	err := config.Load(&got)
	require.EqualError(t, err, `configuration: 7 problems
  QUEEN_SYNC_ENABLED="perhaps": true/false, 1/0, yes/no or on/off (any case) is allowed
  QUEEN_MESH_PORT="70000": a whole number between 1 and 65535 is allowed
  QUEEN_SYNC_DEAD_THRESHOLD_MS="5999": at least twice QUEEN_SYNC_HEARTBEAT_MS (3000) is allowed
  QUEEN_MESH_PEERS="not good": a comma separated list of host or host:port is allowed
  QUEEN_MESH_PEERS="": a comma separated list of host or host:port is allowed
  QUEEN_MESH_BIND_ADDR="10.0.0.1:9": a host name or an IP address without a port (the port is QUEEN_MESH_PORT) is allowed
  QUEEN_MESH_ADVERTISE_HOST="a b": host or host:port is allowed`)

	clean(t, "QUEEN_SYNC_HEARTBEAT_MS", "3000", "QUEEN_SYNC_DEAD_THRESHOLD_MS", "6000")
	require.NoError(t, config.Load(&got))
	for _, ms := range []string{"9", "60001"} {
		clean(t, "QUEEN_SYNC_HEARTBEAT_MS", ms, "QUEEN_SYNC_DEAD_THRESHOLD_MS", "3600000")
		require.ErrorContains(t, config.Load(&got), "QUEEN_SYNC_HEARTBEAT_MS")
	}
	clean(t, "QUEEN_SYNC_DEAD_THRESHOLD_MS", "3600001")
	require.ErrorContains(t, config.Load(&got), "QUEEN_SYNC_DEAD_THRESHOLD_MS")
}

func TestPeersAreReadLeniently(t *testing.T) {
	t.Parallel()
	type peer struct {
		host string
		port int
	}
	for entry, want := range map[string]peer{
		"queen-1":                     {"queen-1", 6633},
		"queen-1:7000":                {"queen-1", 7000},
		"http://queen-1:7000":         {"queen-1", 7000},
		"tcp://queen-1":               {"queen-1", 6633},
		"https://queen.svc:7000/path": {"queen.svc", 7000},
		"queen-1:":                    {"queen-1", 6633},
		"queen-1:mesh":                {"queen-1", 6633},
		"queen-1:0":                   {"queen-1", 6633},
		"queen-1:65536":               {"queen-1", 6633},
		"queen-1 : 65535":             {"queen-1", 65535},
		"10.0.0.1:1":                  {"10.0.0.1", 1},
		"[::1]:7000":                  {"::1", 7000},
		"[::1]":                       {"::1", 6633},
		"fe80::1":                     {"fe80::1", 6633},
	} {
		host, port := hints.Peer(entry, 6633)
		require.Equal(t, want, peer{host, port}, entry)
	}
}

func TestTheSecretDoesNotPrint(t *testing.T) {
	clean(t, "QUEEN_SYNC_SECRET", "sesame")
	var got hints.Config
	require.NoError(t, config.Load(&got))
	require.Equal(t, "sesame", got.Secret.Reveal())
	require.Equal(t, "<set:6 chars>", got.Secret.String())
}
