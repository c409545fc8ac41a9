package buildinfo

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheLinkerKnowsBest(t *testing.T) {
	t.Parallel()
	built := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "abc"}
	for name, tc := range map[string]struct {
		version, commit string // of the linker
		info            *debug.BuildInfo
		wantVersion     string
		wantCommit      string
	}{
		"nothing known":        {"", "", built(""), "devel", ""},
		"built in a checkout":  {"", "", built("(devel)", revision), "devel", "abc"},
		"with changes":         {"", "", built("(devel)", debug.BuildSetting{Key: "vcs.modified", Value: "true"}, revision), "devel", "abc-dirty"},
		"without changes":      {"", "", built("v1.2.3", revision, debug.BuildSetting{Key: "vcs.modified", Value: "false"}), "v1.2.3", "abc"},
		"changes of no commit": {"", "", built("", debug.BuildSetting{Key: "vcs.modified", Value: "true"}), "devel", ""},
		"linked":               {"v2", "def", built("v1.2.3", revision), "v2", "def"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.wantVersion, versionOf(tc.version, tc.info))
			require.Equal(t, tc.wantCommit, commitOf(tc.commit, tc.info))
		})
	}
}

func TestEveryBinaryHasAVersion(t *testing.T) {
	t.Parallel()
	require.NotEmpty(t, Version())
	require.NotPanics(t, func() { Commit() })
}
