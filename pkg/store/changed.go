package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ChangedEntry asks for the partitions of one queue: all by name, or with Since those
// written since then, by their last write. After is where the last page ended.
type ChangedEntry struct {
	Queue string     `json:"queue"`
	Since *time.Time `json:"since,omitempty"`
	After *string    `json:"after,omitempty"`
	Limit int        `json:"limit"`
}

// PartitionsChanged answers some entries (log_partitions_changed_v1), with the instant
// up to which everything can be seen. It is asked for first, by a statement of its own
// (log_safe_time_v1): whatever was written before it has been committed when the tables
// are read. floor is how far before now it is where sessions hide their age.
func (s *Store) PartitionsChanged(ctx context.Context, tenant uuid.UUID, entries []ChangedEntry, floor time.Duration) (RawJSON, error) {
	const name = "list changed partitions"
	doc, err := json.Marshal(entries)
	if err != nil {
		return nil, fmt.Errorf("%s: write the entries: %w", name, err)
	}
	var out []byte
	err = s.db.Do(ctx, name, func(ctx context.Context, conn *pgx.Conn) error {
		var safe time.Time
		var degraded bool
		err := conn.QueryRow(ctx, `SELECT r_at, r_degraded FROM queen.log_safe_time_v1($1)`, floor.Milliseconds()).Scan(&safe, &degraded)
		if err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT queen.log_partitions_changed_v1($1, $2, $3, $4)`, string(doc), safe, degraded, tenant).Scan(&out)
	})
	return out, err
}
