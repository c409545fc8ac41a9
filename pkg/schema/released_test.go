package schema_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/schema"
)

// checkReleased compares the files of a generation with those that have shipped.
func checkReleased(released string, generation int, fingerprint string) error {
	last := 0
	for line := range strings.Lines(released) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var g int
		var sum, version string
		if _, err := fmt.Sscan(line, &g, &sum, &version); err != nil {
			return fmt.Errorf("read %q: %w", line, err)
		}
		if g <= last {
			return fmt.Errorf("generation %d (%s) does not follow %d", g, version, last)
		}
		if last = g; g == generation && sum != fingerprint {
			return fmt.Errorf("generation %d has shipped with %s: a change of sql/ needs the next one (Generation in files.go), these files are %s",
				g, version, fingerprint)
		}
	}
	if generation < last {
		return fmt.Errorf("generation %d has shipped already", last)
	}
	return nil
}

func TestAGenerationThatHasShippedIsNotChanged(t *testing.T) {
	t.Parallel()
	released, err := os.ReadFile("testdata/released.txt")
	require.NoError(t, err)
	fingerprint, err := schema.Fingerprint()
	require.NoError(t, err)
	require.NoError(t, checkReleased(string(released), schema.Generation, fingerprint))
}

func TestReleasesOfTheSchemaAreCompared(t *testing.T) {
	t.Parallel()
	const released = "# a comment\n4 aaa 0.1.0\n6 bbb 0.2.0\n"
	require.NoError(t, checkReleased(released, 6, "bbb"))
	require.NoError(t, checkReleased(released, 7, "ccc"))
	require.ErrorContains(t, checkReleased(released, 6, "ccc"), "generation 6 has shipped with 0.2.0")
	require.ErrorContains(t, checkReleased(released, 5, "ccc"), "generation 6 has shipped already")
	require.ErrorContains(t, checkReleased("6 bbb 0.2.0\n4 aaa 0.1.0\n", 7, "ccc"), "does not follow")
	require.ErrorContains(t, checkReleased("nonsense\n", 7, "ccc"), "nonsense")
}

func TestTheGenerationBeforeIsAdmitted(t *testing.T) {
	t.Parallel()
	require.LessOrEqual(t, schema.MinCompatible, schema.Generation-1, "both run beside each other during an upgrade")
}
