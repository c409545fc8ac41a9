package retention_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// said is what a section of a document says retention does, in short, and the
// tests that prove it. A test of another package has its name in front; what
// follows a slash is a case of the test.
type said struct {
	section, what string
	proofs        []string
}

// internals are the sentences of "Retention internals".
func internals() []said {
	return []said{
		{"Introduction", "deletes whole segments, never messages, and rewrites no blob", []string{"TestSurvivorsAreNotRewritten", "TestCapInsideASegmentKeepsIt"}},
		{"Introduction", "deletes partitions only when empty and untouched, in a phase with a slow clock", []string{"TestLaneIsKept", "TestCleanupRunsOnceAMinute"}},
		{"Introduction", "bounded autocommitting steps, no wrapping transaction", []string{"TestBacklogIsSweptInBatches", "TestHistoryIsOfTheSameTransaction"}},
		{"Introduction", "pushes never pile up behind a sweep", []string{"TestPushesGoOnWhileTheirLaneIsSwept"}},

		{"The loop", "one cycle every RETENTION_INTERVAL ms, 5000 by default", []string{"TestDefaultCadenceIsFiveSeconds", "TestCadenceIsMeasuredFromTheStart"}},
		{"The loop", "on one dedicated connection", []string{"TestPhasesFollowTheirOrder", "TestLeaderIsReplaced"}},
		{"The loop", "without the lock: skip this cycle", []string{"TestReplicaWithoutTheLockSkipsTheCycle"}},
		{"The loop", "five phases in order", []string{"TestPhasesFollowTheirOrder"}},
		{"The loop", "phases 1 and 2 are looped until done", []string{"TestBacklogIsSweptInBatches", "TestSidecarIsPurgedInBatches"}},
		{"The loop", "phase 3 visits eligible partitions only", []string{"TestRules/max wait works with the switch off", "TestRules/nothing is configured"}},
		{"The loop", "phase 4 is batched and at most once a minute", []string{"TestCleanupTakesBatches", "TestCleanupRunsOnceAMinute"}},
		{"The loop", "the lock is released on every exit path", []string{"TestLockIsReleasedOnEveryExit", "TestPhasesFollowTheirOrder"}},
		{"The loop", "cadence from cycle start; an overrun does not compound", []string{"TestCadenceIsMeasuredFromTheStart"}},

		{"The leader gate", "session lock 737001, tried without waiting", []string{"TestReplicaWithoutTheLockSkipsTheCycle"}},
		{"The leader gate", "one replica sweeps per cycle, replicas never double-delete", []string{"TestReplicasShareTheWorkWithoutDoingItTwice", "TestLeaderIsReplaced"}},
		{"The leader gate", "a broken connection cannot leak the lock, and is a warning", []string{"store.TestTheLockDiesWithItsSession", "TestLeaderThatLosesItsSessionStopsAtOnce", "TestLeaderIsReplaced/its session is ended"}},
		{"The leader gate", "no aborted transaction is left behind, even after an error", []string{"TestFailingCycleIsReportedOnce", "TestFailedStepLeavesNeitherDeletionNorHistory"}},

		{"The work list", "all cutoffs from a single now()", []string{"store.TestCutoffsOfThePlan", "retention.TestPhasesRunInTheirOrderUnderTheLock"}},
		{"The work list", "all_cutoff needs the switch and a window", []string{"TestRules/windows without the switch", "TestRules/the switch without a window", "TestRules/age takes everything"}},
		{"The work list", "completed_cutoff needs the switch and a window", []string{"TestRules/windows without the switch", "TestRules/the switch without a window", "TestRules/consumed goes"}},
		{"The work list", "txns_cutoff: the greatest of three, never NULL", []string{"TestSidecarWindow", "TestSidecarIsPurgedOfEveryLane"}},
		{"The work list", "max_wait_cutoff needs max_wait_time_seconds alone", []string{"TestRules/max wait works with the switch off", "TestRules/nothing is configured"}},
		{"The work list", "a NULL cutoff disables the rule", []string{"store.TestWhatAStepDeletes", "TestRules/nothing is configured"}},
		{"The work list", "rows are ordered by partition id", []string{"TestLanesAreSweptAscendingById"}},
		{"The work list", "partitions are joined to queues by id, never by name and tenant", []string{"TestTwoTenantsWithOneQueueNameKeepTheirOwnWindows", "store.TestThePlanJoinsByIdAlone"}},

		{"The retention step", "one call, one partition, at most p_max_rows segments, one transaction; RETENTION_BATCH_SIZE", []string{"TestBacklogIsSweptInBatches", "TestHistoryIsOfTheSameTransaction"}},
		{"The retention step", "a partition deleted underneath is done at once", []string{"store.TestAStepOnADeletedLaneIsDone", "TestNoDeadlockAndNoLostWrite"}},
		{"The retention step", "rule 1: the first segment fresh enough is kept", []string{"TestRules/age takes what nobody has read", "TestRules/age spares what is young"}},
		{"The retention step", "rule 1 walks forward from the watermark, without a sort", []string{"store.TestMaintenanceReadsLittleMoreThanItDeletes"}},
		{"The retention step", "all stale: the boundary is one above the highest offset", []string{"TestRules/age takes everything"}},
		{"The retention step", "rule 1 deletes regardless of consumption", []string{"TestRules/age takes what nobody has read", "TestRules/age takes what a group has not read yet"}},
		{"The retention step", "rule 2 is capped at the slowest group's next offset", []string{"TestRules/consumed stops at the slowest group", "TestRules/consumed stops at readers without a group"}},
		{"The retention step", "rule 2 does nothing without consumer rows", []string{"TestRules/what no group has popped stays"}},
		{"The retention step", "unconsumed backlog is never lost to rule 2", []string{"TestRules/unconsumed stays however old", "TestAbandonedGroupHoldsTheData"}},
		{"The retention step", "the greatest of the applicable rules", []string{"TestRules/both rules, age reaches further", "TestRules/both rules, consumed reaches further"}},
		{"The retention step", "a cap in the middle of a segment keeps it; log_start is the first live base", []string{"TestCapInsideASegmentKeepsIt", "TestMaintainerMayEndAtAnyMoment"}},
		{"The retention step", "one ranged DELETE of the lowest p_max_rows", []string{"TestBacklogIsSweptInBatches"}},
		{"The retention step", "the watermark never moves backwards", []string{"store.TestMarksOnlyMoveForward", "TestRetentionBehavesLikeTheModel", "TestMaintainerMayEndAtAnyMoment"}},
		{"The retention step", "one history row in the same transaction", []string{"TestHistoryIsOfTheSameTransaction", "TestFailedStepLeavesNeitherDeletionNorHistory", "TestIdleCycleLeavesNoTrace"}},
		{"The retention step", "messages_deleted counts frames", []string{"TestCapInsideASegmentKeepsIt", "TestSegmentLeavesWhenItsWindowHasEnded"}},
		{"The retention step", "retention_type names the rule", []string{"TestRules"}},
		{"The retention step", "the loop stops on done or on nothing deleted", []string{"retention.TestStepsGoOnUntilTheLaneIsDone", "retention.TestStepThatDeletesNothingEndsItsLane"}},
		{"The retention step", "history outlives its partition", []string{"TestEmptyLaneIsRemovedAfterItsWindow"}},
		{"The retention step", "history is bounded by the age purge", []string{"TestMetricsPurge"}},
		{"The retention step", "history is indexed on executed_at", []string{"TestHistoryIsIndexedByTime"}},

		{"The sidecar purge", "the same steps over log_txns and txns_start", []string{"TestSidecarIsPurgedInBatches", "TestSidecarWindow"}},
		{"The sidecar purge", "runs for every partition", []string{"TestSidecarIsPurgedOfEveryLane", "TestSidecarWindow/the dedup window by default"}},
		{"The sidecar purge", "the cutoff is the greatest of the dedup window, the consumed window and 900 s", []string{"TestSidecarWindow"}},
		{"The sidecar purge", "a row is kept while the probe or a late ack could need it", []string{"TestPurgedIdMayComeAgain", "TestLateAckInsideTheWindowResolves"}},
		{"The sidecar purge", "a hash that is gone is unknown: redelivery over loss", []string{"TestLateAckBeyondTheWindowIsUnresolvable"}},
		{"The sidecar purge", "txns_start moves under the partition's lock", []string{"store.TestAStepThatWaitedForAPush", "TestPurgedIdMayComeAgain", "TestMaintainerMayEndAtAnyMoment"}},
		{"The sidecar purge", "whole rows; the watermark lands on the boundary", []string{"TestSidecarRowsAreWholeSegments", "TestSidecarWindow"}},
		{"The sidecar purge", "its size does not depend on retention or backlog", []string{"TestSidecarDoesNotGrowWithTheBacklog"}},

		{"maxWaitTimeSeconds eviction", "the retention step with rule 2 off and a type of its own", []string{"store.TestWhatAnEvictionDeletes", "TestRules/max wait takes what nobody has read", "TestRules/max wait after the other rules, on what remains"}},
		{"maxWaitTimeSeconds eviction", "whole segments go for every group, leases included", []string{"TestMaxWaitTakesWhatIsLeased"}},
		{"maxWaitTimeSeconds eviction", "a cursor below log_start resumes at the next offset", []string{"TestMaxWaitTakesWhatIsLeased", "TestGroupThatWasAwayReadsOn"}},
		{"maxWaitTimeSeconds eviction", "applies regardless of retentionEnabled", []string{"TestRules/max wait works with the switch off"}},
		{"maxWaitTimeSeconds eviction", "nothing is dead-lettered", []string{"TestMaxWaitTakesWhatIsLeased"}},

		{"Empty-partition cleanup", "PARTITION_CLEANUP_DAYS, 30 by default", []string{"TestCleanupWindow"}},
		{"Empty-partition cleanup", "last of the data phases: what was emptied may go in the same cycle", []string{"TestEmptyLaneIsRemovedAfterItsWindow", "TestPhasesFollowTheirOrder"}},
		{"Empty-partition cleanup", "one call treats a batch", []string{"TestCleanupTakesBatches"}},
		{"Empty-partition cleanup", "at most once a minute whatever RETENTION_INTERVAL", []string{"TestCleanupRunsOnceAMinute"}},
		{"Empty-partition cleanup", "cursors and segments go with it", []string{"TestEmptyLaneIsRemovedAfterItsWindow"}},
		{"Empty-partition cleanup", "sidecar rows are deleted explicitly", []string{"TestEmptyLaneIsRemovedAfterItsWindow"}},
		{"Empty-partition cleanup", "needs no per-queue cutoffs", []string{"TestCleanupDoesNotAskTheQueue"}},

		{"What vetoes a delete", "created_at and last_write_at older than the cutoff", []string{"TestLaneIsKept/a push inside the window", "TestLaneIsKept/a creation inside the window"}},
		{"What vetoes a delete", "a segment", []string{"TestLaneIsKept/a segment"}},
		{"What vetoes a delete", "a dead letter", []string{"TestLaneIsKept/a dead letter", "TestDeadLettersOutliveEveryRule"}},
		{"What vetoes a delete", "state of a stream", []string{"TestLaneIsKept/state of a stream"}},
		{"What vetoes a delete", "a live lease", []string{"TestLaneIsKept/a live lease"}},
		{"What vetoes a delete", "an expired lease does not", []string{"TestLaneIsKept/an expired lease does not"}},
		{"What vetoes a delete", "recent activity of a group, a lease that expired inside the window included", []string{"TestLaneIsKept/a lease that expired inside the window", "TestLaneIsKept/a lease taken inside the window", "TestLaneIsKept/a group created inside the window"}},
		{"What vetoes a delete", "traces do not, and outlive the partition", []string{"TestLaneIsKept/a trace does not", "TestRecreatedLaneIsANewLane"}},
		{"What vetoes a delete", "a group that only auto-acks leaves no activity", []string{"TestLaneIsKept/a group that commits at delivery leaves no trace"}},
		{"What vetoes a delete", "a delete costs total_consumed, not a position", []string{"TestRecreatedLaneIsANewLane", "TestGroupEntersARecreatedLaneByItsSubscription"}},

		{"The lock, and the one race that remains", "a partition that a pusher holds is skipped", []string{"TestCleanupSkipsALaneThatIsHeld", "store.TestACleanupPassesByWhatIsHeld"}},
		{"The lock, and the one race that remains", "many locks, in the order of the multi-partition writers", []string{"TestNoDeadlockAndNoLostWrite"}},
		{"The lock, and the one race that remains", "the predicate is evaluated again under the locks", []string{"store.TestTheCleanupDecidesUnderItsLocks"}},
		{"The lock, and the one race that remains", "a push that meets the delete is stored under a new id: no write is lost", []string{"TestPushThatMeetsACleanupIsStoredUnderANewID", "store.TestAPushThatRacesACleanup", "TestNoDeadlockAndNoLostWrite"}},

		{"What it records", "one __partition_deleted__ row per partition, 0 messages", []string{"TestCleanupTakesBatches", "TestEmptyLaneIsRemovedAfterItsWindow"}},
		{"What it records", "the time series leaves those rows out", []string{"TestTimeSeriesCountsMessagesOnly"}},
		{"What it records", "the swept line carries partitions_deleted", []string{"TestLogSpeaksOfCyclesThatDeleted"}},
		{"What it records", "QUEEN_PARTITION_CLEANUP_ENABLED=false switches it off; 0 days means one", []string{"TestCleanupWindow"}},

		{"The metrics purge", "METRICS_RETENTION_DAYS, 90 by default, in portions of RETENTION_BATCH_SIZE", []string{"TestMetricsPurge"}},
		{"The metrics purge", "an error is logged once a minute and the cycle succeeds", []string{"TestMetricsPurge"}},

		{"Lock order and deadlock freedom", "one partition lock per step; no deadlock with the multi-partition lockers", []string{"TestNoDeadlockAndNoLostWrite"}},
		{"Lock order and deadlock freedom", "iterates ascending by id", []string{"TestLanesAreSweptAscendingById"}},

		{"What retention does not touch", "log_dlq", []string{"TestDeadLettersOutliveEveryRule"}},
		{"What retention does not touch", "partitions that hold something", []string{"TestLaneIsKept"}},
		{"What retention does not touch", "queues; their deletion is one call that takes everything along", []string{"TestQueuesAreNeverRemoved", "TestDeadLettersOutliveEveryRule", "store.TestDeleteQueueRemovesAllThatBelongsToIt", "e2e.TestDeleteQueue"}},
		{"What retention does not touch", "RETENTION_PARALLELISM is ignored", []string{"TestParallelismHasNoEffect"}},

		{"What you will see in the logs", "info only when a cycle deleted something, with its counts; debug otherwise", []string{"TestLogSpeaksOfCyclesThatDeleted"}},
		{"What you will see in the logs", "an error line every 30 s at most", []string{"TestFailingCycleIsReportedOnce"}},

		{"Configuring it", "retention is opt-in", []string{"TestRetentionIsOffUnlessAskedFor", "TestRules/nothing is configured"}},
		{"Configuring it", "switched off, the sidecar purge still runs and max wait still evicts", []string{"TestSidecarIsPurgedOfEveryLane", "TestRules/max wait works with the switch off"}},
		{"Configuring it", "/configure is a full replace", []string{"TestConfigureReplacesTheRetentionOptions"}},
		{"Configuring it", "the cleanup is not per queue; a partition with segments is kept", []string{"TestCleanupDoesNotAskTheQueue"}},
	}
}

// forUsers are the sentences of "Retention".
func forUsers() []said {
	return []said{
		{"Introduction", "consuming deletes nothing", []string{"TestRules/nothing is configured"}},
		{"Nothing is deleted until you ask", "the four options are off by default", []string{"TestRetentionIsOffUnlessAskedFor"}},
		{"Nothing is deleted until you ask", "small bounded deletes, partition by partition", []string{"TestBacklogIsSweptInBatches"}},

		{"The two consumption-aware rules", "both need the switch and a window", []string{"TestRules/windows without the switch", "TestRules/the switch without a window"}},
		{"The two consumption-aware rules", "retentionSeconds: age alone; a consumer that was down comes back to a shorter log", []string{"TestRules/age takes what nobody has read", "TestGroupThatWasAwayReadsOn/age"}},
		{"The two consumption-aware rules", "completedRetentionSeconds is capped at the lowest cursor plus one", []string{"TestRules/consumed stops at the slowest group"}},
		{"The two consumption-aware rules", "unconsumed backlog stays however old", []string{"TestRules/unconsumed stays however old", "TestGroupThatHasNotSeenALaneYetLosesNothing"}},
		{"The two consumption-aware rules", "a partition that no group has popped keeps everything", []string{"TestRules/what no group has popped stays"}},
		{"The two consumption-aware rules", "an abandoned group holds data until it is deleted", []string{"TestAbandonedGroupHoldsTheData", "TestHeldLaneGoesSoonAfterItsGroupMovesOn"}},
		{"The two consumption-aware rules", "the further boundary wins", []string{"TestRules/both rules, age reaches further", "TestRules/both rules, consumed reaches further"}},

		{"Deletion is whole-segment", "one commit timestamp for all messages of a segment", []string{"TestSegmentLeavesWhenItsWindowHasEnded"}},
		{"Deletion is whole-segment", "a segment that straddles the boundary survives", []string{"TestCapInsideASegmentKeepsIt"}},
		{"Deletion is whole-segment", "a window is a floor on what is kept", []string{"TestSegmentLeavesWhenItsWindowHasEnded", "TestClientSuites"}},

		{"maxWaitTimeSeconds", "whole segments by age, consumed or not, leased or not", []string{"TestMaxWaitTakesWhatIsLeased", "TestClientSuites/eviction of what is leased"}},
		{"maxWaitTimeSeconds", "regardless of retentionEnabled", []string{"TestRules/max wait works with the switch off"}},
		{"maxWaitTimeSeconds", "nothing is dead-lettered", []string{"TestMaxWaitTakesWhatIsLeased"}},
		{"maxWaitTimeSeconds", "cursors below the watermark resume at the next offset", []string{"TestGroupThatWasAwayReadsOn/max wait", "TestClientSuites/a consumer reads on across an eviction"}},
		{"maxWaitTimeSeconds", "work under a lease is removed silently", []string{"TestLeaseOnEvictedMessagesCanStillBeSettled"}},
		{"maxWaitTimeSeconds", "ten seconds are held within fifteen", []string{"TestClientSuites/eviction after ten seconds", "TestEvictionIsPunctualWhateverTheInterval", "TestEvictionIsPunctualBesideABacklog"}},

		{"The dead-letter queue is never purged", "dead letters survive every rule, and go with their queue", []string{"TestDeadLettersOutliveEveryRule"}},

		{"Empty partitions are removed after 30 days", "the row and its counter stay while it holds anything; offsets are never reused", []string{"TestOffsetsGoOnAfterEverythingIsGone", "TestRules"}},
		{"Empty partitions are removed after 30 days", "empty and untouched for PARTITION_CLEANUP_DAYS: removed", []string{"TestCleanupWindow", "TestEmptyLaneIsRemovedAfterItsWindow"}},
		{"Empty partitions are removed after 30 days", "what keeps a partition alive", []string{"TestLaneIsKept"}},
		{"Empty partitions are removed after 30 days", "a group loses total_consumed, not its position, and enters by its subscription", []string{"TestRecreatedLaneIsANewLane", "TestGroupEntersARecreatedLaneByItsSubscription"}},
		{"Empty partitions are removed after 30 days", "a recreated partition has a new id and starts at offset 0", []string{"TestRecreatedLaneIsANewLane"}},
		{"Empty partitions are removed after 30 days", "QUEEN_PARTITION_CLEANUP_ENABLED=false keeps every row", []string{"TestCleanupWindow"}},
		{"Empty partitions are removed after 30 days", "queues are never removed", []string{"TestQueuesAreNeverRemoved"}},

		{"Retention is the replay window", "an older timestamp resolves to the oldest retained segment", []string{"TestInstantBeforeTheRetainedWindowStartsAtItsBegin", "TestEmptiedLaneIsEmptyToEveryGroup"}},
		{"Retention is the replay window", "a dead-letter hand-off without its segment is rejected and moves no cursor", []string{"TestEvictedMessageCannotBeDeadLettered"}},

		{"The ack window is separate", "max(dedupWindowSeconds, completedRetentionSeconds, 900 s)", []string{"TestSidecarWindow"}},
		{"The ack window is separate", "purged on its own watermark", []string{"TestSidecarWindow", "TestHashThatOutlivesItsMessageIsHarmless"}},
		{"The ack window is separate", "a late ack is unresolvable and the message redelivers", []string{"TestLateAckBeyondTheWindowIsUnresolvable", "TestClientSuites/acks across the sweep"}},
		{"The ack window is separate", "a hash that outlives its message is harmless", []string{"TestHashThatOutlivesItsMessageIsHarmless"}},
		{"The ack window is separate", "raising dedupWindowSeconds lengthens it", []string{"TestLateAckInsideTheWindowResolves"}},

		{"Configuring it", "the seven options", []string{"TestRetentionIsOffUnlessAskedFor"}},
		{"What you can see afterwards", "each step leaves a row with its rule and the number of messages", []string{"TestRules", "TestCapInsideASegmentKeepsIt"}},
		{"What you can see afterwards", "nothing deleted shows nothing, not an error", []string{"TestTimeSeriesCountsMessagesOnly", "TestIdleCycleLeavesNoTrace"}},
	}
}

// beyond are the promises of this project that no sentence of the two documents
// makes.
func beyond() []said {
	return []said{
		{"Leadership", "a leader that is killed, cut off, stopped or unreachable is replaced in time", []string{"TestLeaderIsReplaced"}},
		{"Leadership", "a leader that loses its session stops at once", []string{"TestLeaderThatLosesItsSessionStopsAtOnce"}},
		{"Model", "what random pushes, acks, options and cycles leave is what the rules say", []string{"TestRetentionBehavesLikeTheModel"}},
		{"Locks", "a lane that somebody holds is left to a later cycle", []string{"TestLaneThatIsLockedWaitsForALaterCycle"}},
		{"Crashes", "a maintainer may end between any two statements", []string{"TestMaintainerMayEndAtAnyMoment"}},
		{"Notes", "a wrong note of the oldest row is repaired", []string{"TestWrongNotesAreRepaired"}},
		{"Operation", "run-once makes one cycle and tells, with --dry-run without deleting", []string{"TestRunOnceTellsWhatItDid"}},
		{"Clients", "what the suites of the existing clients do", []string{"TestClientSuites"}},
		{"Table", "every name above is a test", []string{"TestEverySentenceHasAProof"}},
	}
}

// packages are where the named tests are, from here.
var packages = map[string]string{
	"":          ".",
	"e2e":       "../e2e",
	"store":     "../../../pkg/store",
	"retention": "../../maintainer/internal/retention",
}

// TestEverySentenceHasAProof requires that every test named above exists, with
// the case that is named, and that no test of this package is left out.
func TestEverySentenceHasAProof(t *testing.T) {
	t.Parallel()
	found := map[string]map[string]map[string]bool{}
	for name, dir := range packages {
		found[name] = testsIn(t, dir)
	}
	named := map[string]bool{}
	for _, list := range [][]said{internals(), forUsers(), beyond()} {
		for _, s := range list {
			require.NotEmpty(t, s.proofs, "%s: %s", s.section, s.what)
			for _, proof := range s.proofs {
				test, subtest, _ := strings.Cut(proof, "/")
				home, name, elsewhere := strings.Cut(test, ".")
				if !elsewhere {
					home, name = "", test
					named[name] = true
				}
				cases, ok := found[home][name]
				require.True(t, ok, "%s: %s: there is no test %s", s.section, s.what, test)
				require.True(t, subtest == "" || cases[subtest], "%s: %s: %s has no case %q", s.section, s.what, test, subtest)
			}
		}
	}
	for name := range found[""] {
		require.True(t, named[name], "%s proves no sentence", name)
	}
}

// testsIn lists the tests of a package, each with the texts that stand in it.
func testsIn(t *testing.T, dir string) map[string]map[string]bool {
	t.Helper()
	tests := map[string]map[string]bool{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || entry.IsDir() {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				tests[f.Name.Name] = texts(f)
			}
		}
		return nil
	}))
	return tests
}

// texts are the string literals in a function.
func texts(f *ast.FuncDecl) map[string]bool {
	out := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				out[text] = true
			}
		}
		return true
	})
	return out
}
