package boot

import (
	"log/slog"

	"github.com/queenmq/queen/pkg/rates"
)

// Rates tells how much of the connection pool is used.
func (d *Database) Rates(s *rates.Sample) {
	stat := d.Stat()
	s.State(slog.Int("pool_in_use", stat.InUse), slog.Int("pool_size", stat.Size), slog.Int("pool_waiting", stat.Waiting))
}
