package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
)

func TestErrorsAreClassifiedBySQLState(t *testing.T) {
	t.Parallel()
	state := func(code string) error { return fmt.Errorf("push: %w", &pgconn.PgError{Code: code}) }
	cases := map[string]struct {
		err       error
		class     Class
		ambiguous bool
	}{
		"no error":                              {nil, Permanent, false},
		"a lost serialisation race":             {state("40001"), Transient, false},
		"a commit the server does not know of":  {state("40003"), Transient, true},
		"a deadlock":                            {state("40P01"), Transient, false},
		"a lock not available":                  {state("55P03"), Transient, false},
		"a demoted primary":                     {state("25006"), Transient, false},
		"a connection failure":                  {state("08006"), Transient, true},
		"too many connections":                  {state("53300"), Transient, false},
		"a full disk":                           {state("53100"), Transient, false},
		"a cancelled statement":                 {state("57014"), Transient, false},
		"an administrator's shutdown":           {state("57P01"), Transient, true},
		"a crash of another session":            {state("57P02"), Transient, true},
		"an input or output error":              {state("58030"), Transient, false},
		"a missing function":                    {state("42883"), RetryLater, false},
		"a missing table":                       {state("42P01"), RetryLater, false},
		"a bad argument":                        {state("22023"), Permanent, false},
		"a unique violation":                    {state("23505"), Permanent, false},
		"a raise without a code":                {state("P0001"), Permanent, false},
		"a refused transaction":                 {fmt.Errorf("transaction: %w", &TxRefused{Reason: TxReasonDuplicate}), Permanent, false},
		"no free connection":                    {fmt.Errorf("push: %w", errors.Join(pgdb.ErrPool, context.DeadlineExceeded)), Transient, false},
		"no connection to a server starting up": {errors.Join(pgdb.ErrPool, &pgconn.PgError{Code: "57P03"}), Transient, false},
		"a passed deadline":                     {fmt.Errorf("push: %w", context.DeadlineExceeded), Transient, true},
		"a broken connection":                   {fmt.Errorf("push: %w", io.ErrUnexpectedEOF), Transient, true},
		"an answer that cannot be read":         {fmt.Errorf("push: %w: %w", errAnswer, io.ErrUnexpectedEOF), Permanent, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.class, Classify(c.err), "class")
			require.Equal(t, c.ambiguous, Ambiguous(c.err), "ambiguous")
		})
	}
}
