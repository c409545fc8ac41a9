package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Forecast says what would go of a lane.
type Forecast struct {
	Segments, Messages, Bytes int64
	Rule                      string // as the history names it; empty when nothing would go
}

// Forecast reads what retention steps would delete of a lane, without a lock
// (log_retention_forecast_v1).
func (m *MaintenanceSession) Forecast(ctx context.Context, pid uuid.UUID, all, completed *time.Time) (Forecast, error) {
	var f Forecast
	var rule *string
	err := m.row(ctx, "forecast", `SELECT r_segments, r_messages, r_bytes, r_rule FROM queen.log_retention_forecast_v1($1, $2, $3)`,
		[]any{pid, all, completed}, &f.Segments, &f.Messages, &f.Bytes, &rule)
	if err != nil {
		return Forecast{}, err
	}
	if rule != nil {
		f.Rule = *rule
	}
	return f, nil
}

// ForecastTxns reads how many sidecar rows of a lane purge steps would delete
// (log_txns_forecast_v1).
func (m *MaintenanceSession) ForecastTxns(ctx context.Context, pid uuid.UUID, cutoff time.Time) (rows int64, err error) {
	err = m.row(ctx, "sidecar forecast", `SELECT queen.log_txns_forecast_v1($1, $2)`, []any{pid, cutoff}, &rows)
	return rows, err
}

// ForecastCleanup looks at rows empty partitions behind a key, as CleanupStep does,
// and reads how many of them it would delete (log_cleanup_page_v1).
func (m *MaintenanceSession) ForecastCleanup(ctx context.Context, cutoff time.Time, after LaneKey, rows int) (Cleanup, error) {
	var c Cleanup
	var at *time.Time
	var id *uuid.UUID
	err := m.row(ctx, "cleanup forecast", `SELECT cardinality(r_dead), r_examined, r_last_at, r_last_id
		FROM queen.log_cleanup_page_v1($1, $2, $3, $4)`,
		[]any{cutoff, after.At, after.ID, rows}, &c.Deleted, &c.Examined, &at, &id)
	if err != nil {
		return Cleanup{}, err
	}
	c.Last, c.Done = laneKey(at, id), c.Examined < rows
	return c, nil
}

// ForecastMetrics reads how many rows PurgeMetrics would delete if it were not
// bounded (metrics_purge_forecast_v1).
func (m *MaintenanceSession) ForecastMetrics(ctx context.Context, cutoff time.Time) (rows int64, err error) {
	err = m.row(ctx, "metrics forecast", `SELECT queen.metrics_purge_forecast_v1($1)`, []any{cutoff}, &rows)
	return rows, err
}
