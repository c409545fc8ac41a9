package harness

import (
	"sync"
	"testing"
)

const (
	// outputKept bounds what is remembered of a broker's output.
	outputKept = 8 << 20
	// outputShown is how much of it a failed test prints.
	outputShown = 6000
)

// outputLog collects the output of one broker.
type outputLog struct {
	mu      sync.Mutex
	dropped int // bytes that fell out at the front
	data    []byte
}

// Write implements io.Writer.
func (o *outputLog) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.data = append(o.data, p...)
	if over := len(o.data) - outputKept; over > 0 {
		o.data = append([]byte(nil), o.data[over:]...)
		o.dropped += over
	}
	return len(p), nil
}

func (o *outputLog) position() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped + len(o.data)
}

// text is everything written since a position.
func (o *outputLog) text(since int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.data[max(0, min(since-o.dropped, len(o.data))):])
}

// tail is the last part of text.
func (o *outputLog) tail(since int) string {
	text := o.text(since)
	return text[max(0, len(text)-outputShown):]
}

// watch prints what the broker of that name wrote during the test if the test
// fails.
func (o *outputLog) watch(t testing.TB, name string) {
	since := o.position()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s wrote meanwhile:\n%s", name, o.tail(since))
		}
	})
}
