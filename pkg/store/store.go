package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/pgdb"
)

// Store calls the stored procedures over one pool. It keeps no state of its
// own and is safe for concurrent use.
type Store struct {
	db *pgdb.DB
}

// New returns a Store over db, which stays the caller's to close.
func New(db *pgdb.DB) *Store { return &Store{db: db} }

// scanOne runs a call that answers exactly one row and reads it into dest.
// The error, pgx.ErrNoRows included, carries name.
func (s *Store) scanOne(ctx context.Context, name, call string, args []any, dest ...any) error {
	return s.db.Do(ctx, name, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, call, args...).Scan(dest...)
	})
}

// rawJSON runs a call that answers one JSON value and returns its bytes, which
// the wire passes through.
func (s *Store) rawJSON(ctx context.Context, name, call string, args ...any) (RawJSON, error) {
	var out []byte // as RawJSON it would be parsed first
	if err := s.scanOne(ctx, name, call, args, &out); err != nil {
		return nil, err
	}
	return out, nil
}
