package check

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
)

// cleanupTimeout is how long the removal may take after the last step, also when the
// check was interrupted.
const cleanupTimeout = 10 * time.Second

// cleanupPause is between two looks at a timer that is being delivered.
const cleanupPause = 100 * time.Millisecond

var errInterrupted = errors.New("interrupted")

// check is one check under way.
type check struct {
	*client
	queue   string
	timeout time.Duration
	report  *Report
	out     reporter
	passed  map[string]bool

	began    bool // something may be there to remove
	messages []message
}

// Run makes the check and tells of it; the answer is whether all is well.
func Run(ctx context.Context, o Options, out reporter) bool {
	queue := "queen-check-" + uuid.NewString()[:13]
	c := &check{
		client: newClient(o.URL, o.Token), queue: queue, timeout: o.Timeout, out: out, passed: map[string]bool{},
		report: &Report{URL: redacted(o.URL), Queue: queue, OK: true},
	}
	defer c.http.CloseIdleConnections()
	start := time.Now()
	out.begin(c.report)
	for _, s := range c.steps() {
		c.do(ctx, s)
	}
	c.cleanup(ctx)
	c.report.ElapsedMs = millis(time.Since(start))
	out.end(c.report)
	return c.report.OK
}

// redacted is a URL without its password.
func redacted(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Redacted()
}

// do makes a step whose requirements were met.
func (c *check) do(ctx context.Context, s step) {
	for _, needed := range s.needs {
		if !c.passed[needed] {
			c.tell(Step{Name: s.name, Status: Skipped, Detail: needed + " did not pass"})
			return
		}
	}
	start := time.Now()
	detail, err := c.bounded(ctx, s)
	done := Step{Name: s.name, Status: Passed, ElapsedMs: millis(time.Since(start)), Detail: detail}
	if err != nil {
		done.Status, done.Detail = Failed, err.Error()
	}
	c.passed[s.name] = err == nil
	c.tell(done)
}

// bounded gives a step its time.
func (c *check) bounded(ctx context.Context, s step) (string, error) {
	if ctx.Err() != nil {
		return "", errInterrupted
	}
	limited, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %s", c.timeout))
	defer cancel()
	detail, err := s.run(limited)
	if err != nil && ctx.Err() != nil {
		err = errInterrupted
	}
	return detail, err
}

func (c *check) tell(s Step) {
	c.report.Steps = append(c.report.Steps, s)
	c.report.OK = c.report.OK && s.Status != Failed
	c.out.step(s)
}

// cleanup removes whatever the steps did not, in a time of its own.
func (c *check) cleanup(ctx context.Context) {
	if !c.began || c.passed[stepDelete] {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTimeout, fmt.Errorf("no answer within %s", cleanupTimeout))
	defer cancel()
	start := time.Now()
	done := Step{Name: "cleanup", Status: Passed, Detail: "removed what was left"}
	if err := c.remove(ctx); err != nil {
		done.Status = Failed
		done.Detail = fmt.Sprintf("queue, timer and key of the name %s may be left: %v", c.queue, err)
	}
	done.ElapsedMs = millis(time.Since(start))
	c.tell(done)
}

// remove takes away all that a check makes, whether it is there or not. The timer goes
// before the queue, which it would make again.
func (c *check) remove(ctx context.Context) error {
	_, keyErr := c.call(ctx, http.MethodDelete, c.keyPath(), nil, nil, http.StatusOK)
	timerErr := c.cancelTimer(ctx)
	_, queueErr := c.call(ctx, http.MethodDelete, "/api/v1/resources/queues/"+c.queue, nil, nil, http.StatusOK)
	return errors.Join(keyErr, timerErr, queueErr)
}

// cancelTimer waits for one that is being delivered.
func (c *check) cancelTimer(ctx context.Context) error {
	for {
		var r struct {
			Status string `json:"status"`
		}
		if _, err := c.call(ctx, http.MethodDelete, "/api/v1/timers/"+c.queue+"/"+timerKey, nil, &r, http.StatusOK); err != nil {
			return err
		}
		if r.Status != "too_late" {
			return nil
		}
		if err := pause(ctx, cleanupPause); err != nil {
			return err
		}
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
