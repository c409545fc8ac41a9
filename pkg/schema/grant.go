package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq/queen/pkg/pgdb"
)

// ErrNoRole says that there is no role of that name.
var ErrNoRole = errors.New("the database role does not exist; create it first")

// SQLSTATEs of a grant that cannot be given.
const (
	codeUndefined = "42704"
	codePrivilege = "42501"
)

// grantAttempts is how often a grant is tried that met another one.
const grantAttempts = 5

// Grant gives roles that own nothing what the services need, and returns the
// statements that did: none where nothing was missing. It is needed again after each
// Apply that did something.
func Grant(ctx context.Context, db *pgdb.DB, roles ...string) ([]string, error) {
	var granted []string
	for _, role := range roles {
		steps, err := grant(ctx, db, role)
		if err != nil {
			return granted, fmt.Errorf("grant to role %q: %w", role, err)
		}
		granted = append(granted, steps...)
	}
	return granted, nil
}

func grant(ctx context.Context, db *pgdb.DB, role string) (steps []string, err error) {
	for range grantAttempts {
		err = db.Do(ctx, "grant", func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `SELECT queen.grant_runtime_v1($1)`, role).Scan(&steps)
		})
		if !retriable(err) { // somebody else grants the same
			break
		}
	}
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
		return steps, err
	case pg.Code == codeUndefined:
		return nil, ErrNoRole
	case pg.Code == codePrivilege:
		return nil, fmt.Errorf("%w: role %q must own what it grants: %w", ErrPrivilege, db.Config().User, err)
	}
	return nil, err
}
