package http1

import (
	"context"
	"sync"
	"time"
)

// requestContext is the context of a request. Only when somebody asks for its end
// is the connection watched for the client leaving.
type requestContext struct {
	conn *conn

	mu     sync.Mutex
	inner  context.Context // once somebody has asked
	cancel context.CancelFunc
	over   bool // the request has been answered
}

// Deadline implements context.Context: there is none.
func (*requestContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (x *requestContext) Done() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.inner == nil {
		x.inner, x.cancel = context.WithCancel(context.Background())
		if x.over {
			x.cancel()
		} else {
			x.conn.watch(x.cancel)
		}
	}
	return x.inner.Done()
}

// Err implements context.Context.
func (x *requestContext) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.inner != nil:
		return x.inner.Err()
	case x.over:
		return context.Canceled
	}
	return nil
}

// Value implements context.Context. The inner context answers for itself, so that
// those derived from this one need no goroutine to hear of its end.
func (x *requestContext) Value(key any) any {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.inner == nil {
		return nil
	}
	return x.inner.Value(key)
}

// end is called when the request has been answered.
func (x *requestContext) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	if x.cancel != nil {
		x.cancel()
	}
}
