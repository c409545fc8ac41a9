package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/contract"
	"github.com/queenmq/queen/services/tests/process"
)

const (
	// startTimeout bounds whatever has to come up: building, initdb, first boot.
	startTimeout = 5 * time.Minute

	// parallelTests is the number of tests in flight at once. They mostly wait
	// for a server, so the number of processors (the default) is too few.
	parallelTests = "12"

	dataPattern = "queen-e2e-data-"
)

// What a run may change of the installations under test.
const (
	// variableBrokers is the number of brokers behind one client, where a test
	// does not fix it.
	variableBrokers = "QUEEN_TEST_BROKERS"
	// variableBrokerEnv holds NAME=value for every broker, separated by blanks. A
	// test's own settings win.
	variableBrokerEnv = "QUEEN_TEST_BROKER_ENV"
	// variableLong makes tests with a choice take their time.
	variableLong = "QUEEN_TEST_LONG"

	maxBrokers = 9
)

// suite is what one test binary shares: the built services, the PostgreSQL
// server, and the brokers for every test that needs no configuration of its own.
type suite struct {
	dir string
	// data is where servers keep theirs, dir what is built or written by the services.
	data string

	// Read while tests run: what is read before is no part of go test's cache key.
	run func() (run, error)

	broker     func() (string, error) // path of the binary
	maintainer func() (string, error)
	sweeper    func() (string, error)
	postgres   func() (*postgres, error)
	template   func() (string, error) // database with the schema, to copy
	shared     func() (*Broker, error)
	contract   func() (*contract.Contract, error)

	mu         sync.Mutex
	closers    []func() // run last to first
	faults     []error  // noticed while stopping
	deviations int      // from the description of the routes
}

// current is the one suite of a test binary: the testing package offers no other
// way from TestMain to a test.
var current *suite

// Main runs the tests of a package and stops what they started. It answers the
// exit code, which is not zero when a service crashed or reported a data race,
// even if every assertion held.
func Main(m *testing.M) int {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil && !flagGiven("test.parallel") {
		_ = f.Value.Set(parallelTests)
	}
	dir, err := os.MkdirTemp("", "queen-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "create a folder:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	pglocal.RemoveStale(context.Background(), dataPattern)
	data, err := pglocal.MakeScratch(dataPattern)
	if err != nil {
		fmt.Fprintln(os.Stderr, "create a folder for PostgreSQL:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(data) }()
	current = newSuite(dir, data)
	code := m.Run()
	for _, fault := range current.close() {
		fmt.Fprintln(os.Stderr, "FAIL:", fault)
		code = max(code, 1)
	}
	return code
}

func flagGiven(name string) bool {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// owner tells whether services run as the owner of the schema.
func (s *suite) owner() bool { return os.Getenv(variableOwner) == "1" }

// Long tells whether the run has time for long tests.
func Long() bool { return os.Getenv(variableLong) == "1" }

// run is what the environment says of all installations.
type run struct {
	brokers   int
	brokerEnv []string
}

func readRun() (run, error) {
	r := run{brokers: 1, brokerEnv: strings.Fields(os.Getenv(variableBrokerEnv))}
	text := os.Getenv(variableBrokers)
	if text == "" {
		return r, nil
	}
	var err error
	if r.brokers, err = strconv.Atoi(text); err != nil || r.brokers < 1 || r.brokers > maxBrokers {
		return r, fmt.Errorf("%s=%s: a number from 1 to %d is allowed", variableBrokers, text, maxBrokers)
	}
	return r, nil
}

func newSuite(dir, data string) *suite {
	s := &suite{dir: dir, data: data, run: sync.OnceValues(readRun)}
	s.broker = sync.OnceValues(func() (string, error) { return s.build("broker", "QUEEN_BROKER_BIN") })
	s.maintainer = sync.OnceValues(func() (string, error) { return s.build("maintainer", "QUEEN_MAINTAINER_BIN") })
	s.sweeper = sync.OnceValues(func() (string, error) { return s.build("sweeper", "QUEEN_SWEEPER_BIN") })
	s.postgres = sync.OnceValues(s.startPostgres)
	s.template = sync.OnceValues(s.makeTemplate)
	s.shared = sync.OnceValues(s.startShared)
	s.contract = sync.OnceValues(readContract)
	return s
}

// maxDeviations is how many a run reports.
const maxDeviations = 20

// verify compares an answer of a broker with the description of its routes. A deviation
// is a fault of the run, since the test at hand may look at something else.
func (s *suite) verify(req *http.Request, a Answer) {
	c, err := s.contract()
	if err == nil {
		err = c.Verify(req, contract.Answer(a))
	}
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deviations++; s.deviations <= maxDeviations {
		s.faults = append(s.faults, fmt.Errorf("%s %s answered %s\nwhich is not what %s says:\n%w", req.Method, req.URL, a, descriptionPath, err))
	}
}

// descriptionPath is where the description of the broker's routes lies in the workspace.
const descriptionPath = "services/broker/internal/httpapi/openapi.yaml"

func readContract() (*contract.Contract, error) {
	root, err := workspaceRoot()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, descriptionPath))
	if err != nil {
		return nil, err
	}
	return contract.Parse(text)
}

// onClose registers something to stop at the end of the run.
func (s *suite) onClose(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, fn)
}

func (s *suite) fault(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, err)
}

func (s *suite) close() []error {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
	return s.faults
}

// Race tells whether the services are built with the race detector.
func Race() bool { return os.Getenv("QUEEN_TEST_RACE") == "1" }

// build compiles a service. The variable names a ready binary; QUEEN_TEST_RACE=1
// builds it with the race detector.
func (s *suite) build(service, variable string) (string, error) {
	if path := os.Getenv(variable); path != "" {
		return filepath.Abs(path)
	}
	root, err := workspaceRoot()
	if err != nil {
		return "", err
	}
	var flags []string
	if Race() {
		flags = append(flags, "-race")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	out := filepath.Join(s.dir, "queen-"+service)
	return out, process.Build(ctx, root, "./services/"+service, out, flags...)
}

// workspaceRoot is the folder of go.work above this package.
func workspaceRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.work above the test package")
		}
		dir = parent
	}
}

// crashMarks are lines that a healthy service never writes.
func crashMarks() []string {
	return []string{"WARNING: DATA RACE", "panic:", "fatal error:", "goroutine stack exceeds"}
}

// checkLog reports a crash or a race that no assertion may have noticed.
func checkLog(service, text string) error {
	for _, mark := range crashMarks() {
		if i := strings.Index(text, mark); i >= 0 {
			return fmt.Errorf("the %s's log holds %q:\n%s", service, mark, text[i:min(len(text), i+4000)])
		}
	}
	return nil
}
