package pgtest_test

import (
	"os"
	"testing"

	"github.com/queenmq/queen/pkg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
