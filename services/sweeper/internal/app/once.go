package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/services/sweeper/internal/timers"
)

// progressEvery is how often a long sweep tells that it goes on.
const progressEvery = 5 * time.Second

// RunOnce sweeps once: it fires what is due, prunes and measures. It does so also
// where the sweeper is switched off. It is not in the hint pool: brokers find what it
// has fired by themselves. The App is of no use afterwards.
func (a *App) RunOnce(ctx context.Context) (r timers.Report, err error) {
	err = a.Once(ctx, func(ctx context.Context) (err error) {
		defer a.progress(ctx, progressEvery)()
		r, err = a.sweeper.Once(ctx)
		return err
	})
	return r, err
}

// progress logs now and then how far the sweep is, until the function that it returns
// is called.
func (a *App) progress(ctx context.Context, every time.Duration) (stop func()) {
	began, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				a.log.InfoContext(ctx, "the sweep goes on", slog.Int64(logging.KeyFired, a.fired.Load()), slog.Duration(logging.KeyElapsed, time.Since(began)))
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
