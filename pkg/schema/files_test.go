package schema

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// planned are the names of all procedure files, also of those that come later:
// a file keeps its number for ever, since the order of application hangs on it.
func planned() []string {
	return []string{
		"001_log_schema", "002_streams_schema", "003_log_push", "004_log_pop", "005_log_ack", "006_log_maintenance",
		"007_log_streams", "008_streams_register_query_v1", "009_streams_state_get_v1", "010_log_admin",
		"011_log_stats", "012_configure", "013_analytics", "014_consumer_groups", "015_status", "016_messages",
		"017_traces", "018_stats", "019_worker_metrics", "020_log_partition_counters", "021_postgres_stats",
		"022_retention_analytics", "023_prometheus", "024_kv", "025_log_timers", "026_kv_sweeper", "027_kv_quota",
		"028_runtime_role", "030_ephemeral",
	}
}

func TestFilesAreNumberedAndInOrder(t *testing.T) {
	t.Parallel()
	files, err := embedded()
	require.NoError(t, err)
	require.Equal(t, mainFile, files[0].name)
	var names []string
	for _, f := range files[1:] {
		names = append(names, f.name)
		require.Regexp(t, regexp.MustCompile(`^[0-9]{3}_[a-z0-9_]+\.sql$`), f.name)
		require.Contains(t, planned(), f.name[:len(f.name)-len(".sql")])
	}
	require.True(t, slices.IsSorted(names))
	require.Len(t, slices.Compact(names), len(files)-1)
}

// Style rule: each file opens with its purpose, locks and why re-applying is safe.
func TestEachFileOpensWithItsPurposeAndLocks(t *testing.T) {
	t.Parallel()
	files, err := embedded()
	require.NoError(t, err)
	for _, f := range files {
		header := regexp.MustCompile(`^(--[^\n]*\n)+`).FindString(f.text)
		require.NotEmpty(t, header, f.name)
		require.Contains(t, header, "ocks", f.name)
		require.Regexp(t, `(?i)re-?appl`, header, f.name)
	}
}

func TestFilesAreCreateOnly(t *testing.T) {
	t.Parallel()
	files, err := embedded()
	require.NoError(t, err)
	for _, f := range files {
		pieces, err := split(f.text)
		require.NoError(t, err, f.name)
		require.NotEmpty(t, pieces, f.name)
		for _, p := range pieces {
			require.NotRegexp(t, `(?i)^\s*(DROP (TABLE|SCHEMA|INDEX)|TRUNCATE|ALTER TABLE|DELETE|UPDATE)`, p, f.name)
			if regexp.MustCompile(`(?im)^\s*DROP FUNCTION`).MatchString(p) {
				require.Regexp(t, `(?i)^BEGIN`, p, "%s: a drop and its creation are one transaction", f.name)
			}
		}
	}
}

func TestOldServersAreRefusedByName(t *testing.T) {
	t.Parallel()
	err := admitServer(140011, "14.11")
	require.ErrorIs(t, err, ErrServerTooOld)
	require.ErrorContains(t, err, "14.11")
	require.NoError(t, admitServer(150000, "15.0"))
}

func TestFingerprintFollowsTheFiles(t *testing.T) {
	t.Parallel()
	sum, err := Fingerprint()
	require.NoError(t, err)
	require.Regexp(t, `^[0-9a-f]{64}$`, sum)
}
