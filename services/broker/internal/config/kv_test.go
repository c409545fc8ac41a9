package config_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/services/broker/internal/config"
)

func TestCeilingsOfKeysAreBroughtIntoTheirBounds(t *testing.T) {
	for _, tc := range []struct {
		name      string
		low, high int
		get       func(config.KV) int
	}{
		{"QUEEN_KV_MAX_VALUE_BYTES", 1, 65536, func(k config.KV) int { return k.MaxValueBytes }},
		{"QUEEN_KV_MAX_KEY_BYTES", 1, 512, func(k config.KV) int { return k.MaxKeyBytes }},
		{"QUEEN_KV_MAX_OPS_PER_CALL", 1, 256, func(k config.KV) int { return k.MaxOpsPerCall }},
		{"QUEEN_KV_MAX_KEYS_PER_CALL", 1, 4096, func(k config.KV) int { return k.MaxKeysPerCall }},
		{"QUEEN_KV_MAX_READ_BYTES", 1, 4194304, func(k config.KV) int { return k.MaxReadBytes }},
		{"QUEEN_KV_PREFIX_LIMIT", 1, 1000, func(k config.KV) int { return k.PrefixLimit }},
		{"QUEEN_KV_QUOTA_RELEASE_PERCENT", 1, 99, func(k config.KV) int { return k.ReleasePercent }},
		{"QUEEN_KV_QUOTA_HOT_PERCENT", 1, 100, func(k config.KV) int { return k.HotPercent }},
		{"QUEEN_KV_STANDALONE_SHED_AFTER", 1, 1 << 30, func(k config.KV) int { return k.ShedAfter }},
		{"QUEEN_KV_QUOTA_REFRESH_MS", 1000, 86400000, func(k config.KV) int { return int(k.QuotaRefresh.Milliseconds()) }},
	} {
		below := tc.low - 1
		for set, want := range map[int]int{below: tc.low, tc.low: tc.low, tc.low + 1: tc.low + 1, tc.high: tc.high} {
			cleanEnv(t, tc.name, strconv.Itoa(set))
			got, err := config.Load()
			require.NoError(t, err, "%s=%d", tc.name, set)
			require.Equal(t, want, tc.get(got.KV), "%s=%d", tc.name, set)
		}
		if tc.high == 1<<30 || tc.high == 86400000 {
			continue
		}
		cleanEnv(t, tc.name, strconv.Itoa(tc.high+1))
		got, err := config.Load()
		require.NoError(t, err)
		require.Equal(t, tc.high, tc.get(got.KV), "%s=%d", tc.name, tc.high+1)
	}
}

func TestSettingsOfKeysOutOfRangeAreNamed(t *testing.T) {
	for _, tc := range []struct {
		name, below, low, high, above, allowed string
	}{
		{"QUEEN_KV_READ_RATE", "-1", "0", "10000000", "10000001", "a whole number between 0 and 10000000"},
		{"QUEEN_KV_READ_BURST", "0", "1", "10000000", "10000001", "a whole number between 1 and 10000000"},
		{"QUEEN_KV_WRITE_RATE", "-1", "0", "10000000", "10000001", "a whole number between 0 and 10000000"},
		{"QUEEN_KV_WRITE_BURST", "0", "1", "10000000", "10000001", "a whole number between 1 and 10000000"},
		{"QUEEN_KV_CELL_RATE", "-1", "0", "10000000", "10000001", "a whole number between 0 and 10000000"},
		{"QUEEN_KV_MAX_TENANTS", "0", "1", "1000000", "1000001", "a whole number between 1 and 1000000"},
		{"QUEEN_KV_POOL_SIZE", "1", "2", "10000", "10001", "0 or a whole number between 2 and 10000"},
		{"QUEEN_KV_POOL_SIZE", "-1", "0", "10000", "10001", "0 or a whole number between 2 and 10000"},
		{"QUEEN_KV_FLIGHTS", "-2", "-1", "10000", "10001", "a whole number between -1 and 10000"},
		{"QUEEN_KV_QUOTA_REFRESH_MS", "-1", "0", "86400000", "86400001", ""},
		{"QUEEN_KV_MAX_VALUE_BYTES", "x", "1", "65536", "1.5", "a whole number"},
		{"QUEEN_KV_REQUIRE_GRANT", "maybe", "off", "on", "2", "true/false"},
		{"QUEEN_KV_TRUSTED_PROXY", "maybe", "off", "on", "2", "true/false"},
	} {
		for _, good := range []string{tc.low, tc.high} {
			cleanEnv(t, tc.name, good)
			_, err := config.Load()
			require.NoError(t, err, "%s=%s", tc.name, good)
		}
		for _, bad := range []string{tc.below, tc.above} {
			cleanEnv(t, tc.name, bad)
			_, err := config.Load()
			require.ErrorContains(t, err, tc.name+`="`+bad+`": `+tc.allowed)
		}
	}
}

func TestConnectionsForKeysFollowThePool(t *testing.T) {
	for _, tc := range []struct {
		pool, own string
		want      int
	}{
		{"2", "", 4}, {"40", "", 4}, {"49", "", 4}, {"50", "", 5}, {"160", "", 16}, {"320", "", 32}, {"10000", "", 32}, {"40", "2", 2}, {"40", "100", 100},
	} {
		cleanEnv(t, "DB_POOL_SIZE", tc.pool, "QUEEN_KV_POOL_SIZE", tc.own)
		got, err := config.Load()
		require.NoError(t, err)
		require.Equal(t, tc.want, got.KVPoolSize(), tc)
	}
}

func TestFlightsFollowTheConnections(t *testing.T) {
	for _, tc := range []struct {
		connections, own string
		want             int
	}{
		{"2", "", 1}, {"9", "", 4}, {"24", "", 12}, {"32", "", 12}, {"32", "0", 12}, {"32", "1", 1}, {"2", "50", 50}, {"32", "-1", -1},
	} {
		cleanEnv(t, "QUEEN_KV_POOL_SIZE", tc.connections, "QUEEN_KV_FLIGHTS", tc.own)
		got, err := config.Load()
		require.NoError(t, err)
		require.Equal(t, tc.want, got.KVFlights(), tc)
	}
}

func TestGrantsAreAskedForWithTenancyOrAlone(t *testing.T) {
	cleanEnv(t, "QUEEN_KV_REQUIRE_GRANT", "true")
	got, err := config.Load()
	require.NoError(t, err)
	require.True(t, got.KV.RequireGrant)

	cleanEnv(t, "QUEEN_KV_REQUIRE_GRANT", "", "QUEEN_TENANCY_HEADER", "true")
	_, err = config.Load()
	require.ErrorContains(t, err, `QUEEN_KV_TRUSTED_PROXY="false": with QUEEN_TENANCY_HEADER only true`)

	cleanEnv(t, "QUEEN_KV_TRUSTED_PROXY", "true", "QUEEN_TENANCY_HEADER", "true")
	_, err = config.Load()
	require.ErrorContains(t, err, "QUEEN_TENANCY_HEADER")
	require.NotContains(t, err.Error(), "QUEEN_KV_TRUSTED_PROXY")
}

func TestReadBytesThatDoNothingAreWarnedAbout(t *testing.T) {
	cleanEnv(t, "QUEEN_KV_MAX_READ_BYTES", "1000")
	got, err := config.Load()
	require.NoError(t, err)
	require.Equal(t, 30*time.Second, got.KV.QuotaRefresh)
	log, lines := logtest.NewRecorder()
	got.Show(t.Context(), log)
	require.Contains(t, lines.String(), "QUEEN_KV_MAX_READ_BYTES")
	require.Contains(t, lines.String(), "the bytes that a call may read are fixed in the database")
}
