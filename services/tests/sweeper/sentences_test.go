package sweeper_test

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

// said is what a section of "Sweeper internals" says, in short, and the tests that
// prove it. A test of another package has its name in front; what follows a slash is a
// case of the test.
type said struct {
	section, what string
	proofs        []string
}

func internals() []said {
	return []said{
		{"Introduction", "fires due timers into the log, prunes expired keys", []string{"e2e.TestSweeperFiresAndPrunes", "TestPruneFollowsWhatReadersSee"}},
		{"Introduction", "QUEEN_SWEEPER=false: surfaces stay, timers wait, keys are not pruned, and the log says so", []string{"e2e.TestSweeperSwitchedOffLeavesThingsAsTheyAre"}},

		{"Two clocks", "an expired key is hidden from the first read after its instant", []string{"store.TestKVExpiryIsExclusive", "TestPruneFollowsWhatReadersSee"}},
		{"Two clocks", "the fire is timed by the nearest visible_at that the server reports", []string{"timers.TestATimerIsFiredWhenItIsDue", "store.TestTimersDue"}},
		{"Two clocks", "QUEEN_KV_EXPIRE_EVERY_MS 1000, QUEEN_KV_EXPIRE_BATCH 1000", []string{"config.TestDefaults", "keys.TestEachGateHasItsTime", "TestPruneFollowsWhatReadersSee"}},
		{"Two clocks", "QUEEN_KV_USAGE_EVERY_MS 300000", []string{"config.TestDefaults", "keys.TestEachGateHasItsTime"}},
		{"Two clocks", "expired rows that are present are counted on every pass, also when nothing is deleted", []string{"TestUnprunedKeysRaiseAnAlarm", "keys.TestWhatIsLeftIsToldAlsoWhenNothingWasDeleted", "store.TestKVPrune"}},

		{"Leaderless", "every replica drains, the work is shared, each timer fires once", []string{"TestSweepersShareABacklog", "TestSweepersStealLapsedLeases", "store.TestTimersAreDeliveredOnce"}},
		{"Leaderless", "claim and fire skip what is locked and never wait", []string{"store.TestTimersClaimWaitsForNobody", "store.TestTimersRescheduleMeetsFire", "TestEmptyClaimsAreNoSpin"}},
		{"Leaderless", "the prune skips what is locked", []string{"store.TestKVPruneWaitsForNobody", "TestUnprunedKeysRaiseAnAlarm"}},
		{"Leaderless", "no advisory lock at all", []string{"TestStatementsOfASweeper"}},

		{"Shards", "64 of them, generated from the name", []string{"store.TestKVShards"}},
		{"Shards", "QUEEN_SWEEPER_SHARDS does not exist", []string{"TestShardsCannotBeSet"}},
		{"Shards", "everybody scans every shard and begins at one of its own, rotated each cycle", []string{"timers.TestSweepersBeginAtShardsOfTheirOwnAndMoveOn"}},
		{"Shards", "one that dies orphans nothing", []string{"TestSweepersShareABacklog", "TestSweeperKilledBetweenClaimAndFire"}},

		{"The cycle", "the probe is one call with one now(): next instant, due, lateness", []string{"store.TestTimersDue", "timers.TestMetrics"}},
		{"The cycle", "claim and fire in the same iteration", []string{"timers.TestClaimsRunAheadOfTheFireByOneBatch"}},
		{"The cycle", "QUEEN_SWEEPER_CYCLE_MAX_ROWS 5000, QUEEN_SWEEPER_CLAIM_BATCH 200", []string{"config.TestDefaults", "timers.TestACycleTakesNoMoreThanItsRows", "timers.TestEveryKnobOfAClaimIsPassedOn"}},
		{"The cycle", "claiming stops once half of QUEEN_SWEEPER_LEASE_MS 30000 is spent", []string{"config.TestDefaults", "timers.TestClaimingStopsAfterHalfOfTheLease"}},
		{"The cycle", "a lease that has lapsed is somebody else's, and the late fire stale", []string{"TestLateFireIsStale", "TestLateFireWithoutARivalClaimsAgain", "timers.TestALapsedLeaseIsFiredByAnotherSweeperOnce"}},
		{"The cycle", "a fire is capped in bytes, QUEEN_SWEEPER_MAX_FIRE_BYTES 8 MiB; beyond it several transactions", []string{"config.TestDefaults", "TestFireIsCappedInBytes/a few at a time", "timers.TestAVolleyIsCappedInBytes"}},
		{"The cycle", "due and nothing to claim: 25 to 200 ms with jitter", []string{"config.TestDefaults", "timers.TestAnEmptyClaimBacksOffWithJitter", "TestEmptyClaimsAreNoSpin"}},
		{"The cycle", "the floor applies only when there is work", []string{"timers.TestTheSleepIsOneOfFourBands", "timers.TestABacklogIsDrainedWithTheLeastPauses"}},
		{"The cycle", "the sleep is computed from four bands, both ends of each", []string{"timers.TestTheSleepIsOneOfFourBands", "timers.TestNoBandReachesBeyondTheCeiling"}},
		{"The cycle", "sub-clocks: rollup, then prune, each on its own gate", []string{"keys.TestEachGateHasItsTime", "keys.TestOneThingAtATime"}},

		{"Knobs", "QUEEN_SWEEPER_MIN_SLEEP_MS 5, never 0", []string{"config.TestDefaults", "config.TestEveryKnobIsRaisedToItsFloorAndSaidSo"}},
		{"Knobs", "QUEEN_SWEEPER_MAX_SLEEP_MS 1000", []string{"config.TestDefaults", "TestTimersNeedNoHints", "TestIdleSweeperKeepsProbing"}},
		{"Knobs", "QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS 30000 after QUEEN_SWEEPER_IDLE_AFTER_CYCLES", []string{"config.TestDefaults", "keys.TestThePruneRestsWhileNothingIsThere", "TestIdleSweeperKeepsProbing"}},
		{"Knobs", "QUEEN_SWEEPER_PARALLELISM 1", []string{"config.TestDefaults", "timers.TestALaneIsWithOneWorker"}},
		{"Knobs", "each has a lowest and a highest value", []string{"config.TestEveryKnobTakesItsLowestAndHighestValue", "config.TestEveryKnobBeyondItsBoundIsRefused"}},

		{"The wake", "both ways in ring", []string{"TestScheduleWakesASleepingSweeper", "broker timers.TestTheNearestTimerIsAnnounced"}},
		{"The wake", "after the commit, never before", []string{"transact.TestChargesFollowTheOutcome", "broker timers.TestTheNearestTimerIsAnnounced"}},
		{"The wake", "only for an earlier instant than the one promised", []string{"announce.TestOnlyNearerTimersAreTold", "announce.TestTimersAreToldOnceByMany"}},
		{"The wake", "no LISTEN, no NOTIFY", []string{"TestStatementsOfASweeper"}},
		{"The wake", "one that is lost costs a second", []string{"TestTimersNeedNoHints"}},
		{"The wake", "deliverAt is a floor", []string{"e2e.TestTimersClientArrive/as what was promised", "TestClockOfTheHostIsWrong"}},

		{"Priority", "fire, rollup, prune; shed from the bottom", []string{"keys.TestTheLadderShedsThePruneFirst", "timers.TestPressureShedsTheUpkeepAndNeverTheFire"}},
		{"Priority", "class 42 switches rollup or prune off, and the loop goes on", []string{"TestUpkeepWithoutItsProceduresSwitchesItselfOff", "keys.TestAPhaseWhoseProcedureIsMissingIsOff"}},
		{"Priority", "a broker answers without their file", []string{"TestUpkeepWithoutItsProceduresSwitchesItselfOff", "store.TestKVWorksWithoutTheSweeperFile"}},
		{"Priority", "the fire never switches itself off: smaller batches, longer sleeps", []string{"TestMissingFireProcedureOnlyDelays", "timers.TestTheFireIsNeverSwitchedOffByErrors", "timers.TestADatabaseThatIsAwayIsAskedLessAndLess"}},
		{"Priority", "two switches for the two halves", []string{"TestFireSwitchBesideABacklog", "TestScheduleSwitch"}},
		{"Priority", "oldest first when the fire is back", []string{"TestBacklogIsFiredInOrder"}},
	}
}

// beyond are the promises of this project that no sentence of the document makes.
func beyond() []said {
	return []said{
		{"Faults", "killed between claim and fire", []string{"TestSweeperKilledBetweenClaimAndFire"}},
		{"Faults", "killed between fire and answer", []string{"TestSweeperKilledBetweenFireAndAnswer"}},
		{"Faults", "answers of a fire or a claim that are lost", []string{"TestSweeperLosesTheAnswerOfAFire", "TestSweeperLosesTheAnswerOfAClaim"}},
		{"Faults", "connections that are cut", []string{"TestSweeperLosesItsConnectionInAFire"}},
		{"Faults", "PostgreSQL restarted during a fire", []string{"TestPostgreSQLRestartedDuringAFire"}},
		{"Faults", "leases stolen back and forth", []string{"TestSweepersStealLapsedLeases"}},
		{"Faults", "the clock of a host wrong by an hour", []string{"TestClockOfTheHostIsWrong/an hour behind", "TestClockOfTheHostIsWrong/an hour ahead"}},
		{"Faults", "a broker killed between its commit and its answer", []string{"TestBrokerKilledBetweenScheduleAndAnswer", "TestBrokerKilledBetweenATransactionAndItsAnswer"}},
		{"Faults", "started before the schema is there", []string{"e2e.TestSweeperWaitsForTheSchema"}},
		{"Failures", "a lane or a timer that cannot be fired costs the others nothing and is dead-lettered", []string{"TestPoisonedLaneIsIsolated", "TestPoisonedTimerFailsAlone"}},
		{"Failures", "a transient failure spends no attempt", []string{"TestTransientFailuresSpendNoAttempt"}},
		{"Failures", "backoff is exponential with full jitter", []string{"timers.TestBackoffDoublesWithFullJitter"}},
		{"Messages", "compressed payloads arrive as what was compressed", []string{"TestCompressedPayloads"}},
		{"Messages", "payloads that are no JSON spoil no answer", []string{"TestPayloadsThatAreNotJSON"}},
		{"Messages", "queues are born at the fire", []string{"TestQueuesAreBornAtTheFire"}},
		{"Switches", "each is changed alone, and a missing row is on", []string{"TestSwitchesAreChangedOneByOne"}},
		{"Switches", "keys are switched off for everybody but the prune", []string{"TestKVSwitch"}},
		{"Quotas", "measured by sweepers, enforced by brokers, and released when a tenant has emptied itself", []string{"TestQuotaFollowsWhatIsMeasured"}},
		{"Operation", "run-once sweeps once and tells", []string{"e2e.TestRunOnceSweepsAtOnce"}},
		{"Operation", "series are there from the start", []string{"TestMetricsAreThereWhenIdle"}},
		{"Clients", "what the suites of the existing clients do", []string{"e2e.TestTimersClientArrive", "e2e.TestTimersClientCancel", "e2e.TestTimersClientListsInPages", "e2e.TestKVClientTimeToLive", "e2e.TestRiderClientGate"}},
		{"Clients", "transactions that fail leave no trace and do not deadlock", []string{"e2e.TestRidersThatFailLeaveNoTrace", "e2e.TestRidersInOppositeOrdersDoNotDeadlock"}},
		{"Clients", "anything at all is answered as the contract lists", []string{"e2e.TestKVRandomRequests", "store.TestKVFuzz"}},
		{"Table", "every name above is a test", []string{"TestEverySentenceHasAProof"}},
	}
}

// packages are where the named tests are, from here.
var packages = map[string]string{
	"":              ".",
	"e2e":           "../e2e",
	"store":         "../../../pkg/store",
	"timers":        "../../sweeper/internal/timers",
	"keys":          "../../sweeper/internal/kv",
	"config":        "../../sweeper/internal/config",
	"announce":      "../../broker/internal/announce",
	"broker timers": "../../broker/internal/timers",
	"transact":      "../../broker/internal/transact",
}

// TestEverySentenceHasAProof requires that every test named above exists, with the
// case that is named, and that no test of this package is left out.
func TestEverySentenceHasAProof(t *testing.T) {
	t.Parallel()
	found := map[string]map[string]map[string]bool{}
	for name, dir := range packages {
		found[name] = testsIn(t, dir)
	}
	named := map[string]bool{}
	for _, list := range [][]said{internals(), beyond()} {
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
