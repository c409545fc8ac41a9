package boot

import (
	"log/slog"

	"github.com/queenmq/queen/pkg/rates"

	"github.com/queenmq/queen/pkg/logging"
)

// Rates tells how much of the connection pool is used.
func (d *Database) Rates(s *rates.Sample) {
	stat := d.Stat()
	s.State(slog.Int(logging.KeyPoolInUse, stat.InUse), slog.Int(logging.KeyPoolSize, stat.Size), slog.Int(logging.KeyPoolWaiting, stat.Waiting))
}
