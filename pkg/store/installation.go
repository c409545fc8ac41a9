package store

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Installation is the identity of this database. Whoever asks first creates it,
// once and for all; everybody gets the same.
func (s *Store) Installation(ctx context.Context) (id uuid.UUID, err error) {
	err = s.db.Do(ctx, "read installation", func(ctx context.Context, conn *pgx.Conn) error {
		const create = `INSERT INTO queen.system_state (key, value) VALUES ('cluster_id', to_jsonb($1::TEXT)) ON CONFLICT (key) DO NOTHING`
		if _, err := conn.Exec(ctx, create, uuid.NewString()); err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT (value #>> '{}')::UUID FROM queen.system_state WHERE key = 'cluster_id'`).Scan(&id)
	})
	return id, err
}
