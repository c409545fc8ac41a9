package retention

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// logged are the lines with that message.
func (b *bench) logged(message string) (out []string) {
	for _, line := range strings.Split(b.lines.String(), "\n") {
		if strings.Contains(line, message) {
			out = append(out, line)
		}
	}
	return out
}

func TestSweptLineNamesWhatWasDeleted(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		b.busy()
		b.db.cost["Plan"] = 42 * time.Millisecond
		b.run(6 * time.Second)
		lines := b.logged("msg=swept")
		require.Len(t, lines, 2)
		require.Regexp(t, "^"+regexp.QuoteMeta("time=2000-01-01T00:00:00.042Z level=INFO msg=swept queues=1 segments_deleted=4 txns_purged=5 "+
			"max_wait_evicted=1 partitions_deleted=7 metrics_purged=11 due=3 backed_off=2 timed_out=0 elapsed_ms=42")+"$", lines[0])
		require.Contains(t, lines[1], "level=DEBUG msg=swept queues=1 segments_deleted=0 txns_purged=0 max_wait_evicted=0 partitions_deleted=0 metrics_purged=0")
	})
}

func TestSweptLineCountsTheQueuesThatWereReached(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.cost["RetentionStep"] = PhaseTime / 2
		for range 7 {
			b.lanes(b.queue(fakeQueue{all: time.Hour}), 1, 1, 2*time.Hour)
		}
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 7, report.Phase(PhaseRetention).Queues, "were due")
		require.Len(t, report.Queues, 2)
		newJournal(b.log).cycle(t.Context(), report, nil)
		require.Len(t, b.logged("msg=swept queues=2 segments_deleted=2"), 1)
	})
}

func TestIdleCycleSpeaksAtDebug(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		b.run(31 * time.Second)
		require.Len(t, b.logged("level=DEBUG msg=swept"), 7)
		require.Empty(t, b.logged("level=INFO"))
	})
}

func TestEachDeletionAloneIsWorthALine(t *testing.T) {
	t.Parallel()
	for field, arrange := range map[string]func(b *bench){
		"segments_deleted":   func(b *bench) { b.lanes(b.queue(fakeQueue{all: time.Hour}), 1, 1, 2*time.Hour) },
		"max_wait_evicted":   func(b *bench) { b.lanes(b.queue(fakeQueue{maxWait: time.Hour}), 1, 1, 2*time.Hour) },
		"partitions_deleted": func(b *bench) { b.db.dead = 1 },
		"metrics_purged":     func(b *bench) { b.db.metrics = 1 },
		"txns_purged": func(b *bench) {
			b.lanes(b.queue(fakeQueue{}), 1, 0, 0)[0].txns = []time.Time{time.Now().Add(-time.Hour)}
		},
	} {
		t.Run(field, func(t *testing.T) {
			bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
				arrange(b)
				b.run(6 * time.Second)
				lines := b.logged("level=INFO msg=swept")
				require.Len(t, lines, 1)
				require.Contains(t, lines[0], field+"=1 ")
				require.Equal(t, 1, strings.Count(strings.ReplaceAll(lines[0], " queues=1", ""), "deleted=1 ")+
					strings.Count(lines[0], "purged=1 ")+strings.Count(lines[0], "evicted=1 "))
			})
		})
	}
}

func TestCycleErrorsAreLoggedOnceInThirtySeconds(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.hook = func(call string) error {
			if call == "Plan" {
				return errBroken
			}
			return nil
		}
		b.run(98 * time.Second)
		lines := b.logged("level=ERROR")
		require.Len(t, lines, 4)
		require.Contains(t, lines[0], "not_logged=0")
		require.Contains(t, lines[1], "not_logged=5")
		require.Contains(t, lines[1], "time=2000-01-01T00:00:30.000Z")
		require.Contains(t, lines[1], "make the plan: ")
		require.Empty(t, b.logged("msg=swept"), "a failed cycle has swept nothing")
	})
}

func TestPurgeErrorsAreLoggedOnceAMinute(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.hook = func(call string) error {
			if call == "PurgeMetrics" {
				return errBroken
			}
			return nil
		}
		b.run(128 * time.Second)
		lines := b.logged("level=WARN")
		require.Len(t, lines, 3)
		require.Contains(t, lines[1], "time=2000-01-01T00:01:00.000Z")
		require.Contains(t, lines[1], "metrics were not purged")
		require.Contains(t, lines[1], "not_logged=11")
		require.Empty(t, b.logged("level=ERROR"))
		require.Len(t, b.logged("msg=swept"), 26, "the cycle succeeds")
	})
}

func TestWhatWasDeletedBeforeAnErrorIsLogged(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.busy()
		b.db.hook = func(call string) error {
			if call == "TxnsPage" {
				return errBroken
			}
			return nil
		}
		b.run(time.Second)
		require.Len(t, b.logged("level=ERROR"), 1)
		require.Len(t, b.logged("level=INFO msg=swept queues=1 segments_deleted=4"), 1)
	})
}
