package pgdb

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestSuspectConnections(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"57P01": true, "57P03": true, "57014": true, "08006": true, "58030": true,
		"25006": false, "40001": false, "23505": false, "55P03": false, "42883": false, "5": false, "": false,
	} {
		require.Equal(t, want, suspect(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code})), code)
	}
	require.False(t, suspect(pgx.ErrNoRows))
	require.False(t, suspect(errors.New("a refusal of the caller's own")))
	require.False(t, suspect(nil))
	for code, want := range map[string]bool{"57P01": true, "57014": false, "25006": true, "40001": false} {
		require.Equal(t, want, ownSuspect(&pgconn.PgError{Code: code}), code)
	}
}

func TestInvalidatedPlans(t *testing.T) {
	t.Parallel()
	for _, e := range []pgconn.PgError{
		{Code: "0A000", Routine: "RevalidateCachedQuery"},
		{Code: "26000"},
		{Code: "42883", Routine: "ParseFuncOrColumn"},
		{Code: "XX000", Message: "cache lookup failed for function 12345"},
	} {
		require.True(t, planInvalidated(fmt.Errorf("wrapped: %w", &e)), e.Code)
	}
	for _, e := range []pgconn.PgError{
		{Code: "0A000", Routine: "other"}, {Code: "42883", Routine: "op_error"}, {Code: "42P01"},
		{Code: "XX000", Message: "could not read block 0"},
	} {
		require.False(t, planInvalidated(&e), e.Code)
	}
	require.False(t, planInvalidated(nil))
}

func TestEndedSaysHowAndWhy(t *testing.T) {
	t.Parallel()
	stopping := errors.New("stopping")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopping)
	cause := &pgconn.PgError{Code: "57014"}
	err := ended(ctx, cause)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, stopping)
	require.ErrorIs(t, err, error(cause))
}
