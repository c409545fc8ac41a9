package errtext_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/services/broker/internal/errtext"
)

func TestOf(t *testing.T) {
	t.Parallel()
	wrap := func(err error) error { return fmt.Errorf("ack by hash: %w", err) }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"message of the database": {wrap(&pgconn.PgError{Severity: "ERROR", Code: "22P02", Message: `invalid: "x (SQLSTATE 1)"`}), `invalid: "x (SQLSTATE 1)"`},
		"no connection":           {wrap(errors.Join(pgdb.ErrPool, context.DeadlineExceeded)), "pool"},
		"deadline":                {wrap(context.DeadlineExceeded), errtext.Timeout},
		"anything else":           {errors.New("x"), "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, errtext.Of(c.err))
		})
	}
}

func TestCanceled(t *testing.T) {
	t.Parallel()
	require.True(t, errtext.Canceled(fmt.Errorf("call: %w", &pgconn.PgError{Code: "57014"})))
	require.False(t, errtext.Canceled(&pgconn.PgError{Code: "57P01"}))
	require.False(t, errtext.Canceled(context.DeadlineExceeded))
}
