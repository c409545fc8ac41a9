package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

// RunOnce makes one retention cycle, or with dry only finds out what it would
// delete. The error is retention.ErrNotLeader when another maintainer is at it. The
// App is of no use afterwards.
func (a *App) RunOnce(ctx context.Context, dry bool) (retention.Report, error) {
	r, err := a.once(ctx, dry)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.Process.ShutdownTimeout)
	defer cancel()
	return r, errors.Join(err, a.db.Disconnect(ending), a.tel.Shutdown(ending))
}

func (a *App) once(ctx context.Context, dry bool) (retention.Report, error) {
	if err := a.db.Connect(ctx); err != nil {
		return retention.Report{}, err
	}
	if err := a.db.RequireSchema(ctx); err != nil {
		return retention.Report{}, fmt.Errorf("check schema (brokers or `broker migrate` apply it): %w", err)
	}
	if dry {
		return a.jobs.retention.DryRun(ctx)
	}
	return a.jobs.retention.Once(ctx)
}
