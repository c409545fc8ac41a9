package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// requestTimeout bounds one request, long polls included.
	requestTimeout = 60 * time.Second

	overloadAttempts = 10
	overloadPause    = 500 * time.Millisecond
)

// Client speaks to one broker, or to several in turn. It is safe for concurrent
// use.
type Client struct {
	// URL is the base address of the first broker, without a trailing slash.
	URL  string
	urls []string
	next atomic.Uint64
	http *http.Client
	// verify looks at every answer; nil where there is nothing to compare them with.
	verify func(*http.Request, Answer)

	slowest atomic.Int64 // what the longest request took
}

// NewClient makes a client with connections of its own. With several addresses
// each request goes to the next one, as behind a load balancer.
func NewClient(urls ...string) *Client {
	return &Client{URL: urls[0], urls: urls, http: &http.Client{
		Timeout:   requestTimeout,
		Transport: &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true},
	}}
}

// turn is the address that the next request goes to.
func (c *Client) turn() string {
	return c.urls[(c.next.Add(1)-1)%uint64(len(c.urls))]
}

// CloseIdle drops the kept connections.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// Answer is one response.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Slowest is what the longest request so far took.
func (c *Client) Slowest() time.Duration { return time.Duration(c.slowest.Load()) }

func (c *Client) note(took time.Duration) {
	for {
		longest := c.slowest.Load()
		if int64(took) <= longest || c.slowest.CompareAndSwap(longest, int64(took)) {
			return
		}
	}
}

// Call sends one request. A nil body sends none; header entries alternate
// between name and value.
func (c *Client) Call(ctx context.Context, method, path string, body []byte, header ...string) (Answer, error) {
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.turn()+path, reader)
	if err != nil {
		return Answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	a, err := c.exchange(req)
	if err == nil && c.verify != nil {
		c.verify(req, a)
	}
	return a, err
}

func (c *Client) exchange(req *http.Request) (Answer, error) {
	began := time.Now()
	defer func() { c.note(time.Since(began)) }()
	res, err := c.http.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return Answer{Status: res.StatusCode, Header: res.Header, Body: text}, err
}

// callAgain is Call for a client that repeats what an overloaded broker has
// refused, as the existing clients do, within the same number of attempts.
func (c *Client) callAgain(ctx context.Context, method, path string, body []byte) (Answer, error) {
	for attempt := 1; ; attempt++ {
		a, err := c.Call(ctx, method, path, body)
		if err != nil || a.Status != http.StatusTooManyRequests || attempt == overloadAttempts {
			return a, err
		}
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-time.After(overloadPause):
		}
	}
}

// Get sends a GET without a body.
func (c *Client) Get(t testing.TB, path string) Answer {
	t.Helper()
	a, err := c.Call(t.Context(), http.MethodGet, path, nil)
	require.NoError(t, err, "GET %s", path)
	return a
}

// Post sends a JSON text as it is.
func (c *Client) Post(t testing.TB, path, body string) Answer {
	t.Helper()
	a, err := c.Call(t.Context(), http.MethodPost, path, []byte(body), "Content-Type", "application/json")
	require.NoError(t, err, "POST %s", path)
	return a
}

// Delete sends a DELETE without a body.
func (c *Client) Delete(t testing.TB, path string) Answer {
	t.Helper()
	a, err := c.Call(t.Context(), http.MethodDelete, path, nil)
	require.NoError(t, err, "DELETE %s", path)
	return a
}

// String shows an answer in a failure message.
func (a Answer) String() string {
	return fmt.Sprintf("%d %.1000s", a.Status, a.Body)
}

// Into decodes the body.
func (a Answer) Into(t testing.TB, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(a.Body, v), "body: %s", a)
}

// Object is the body as a JSON object.
func (a Answer) Object(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	a.Into(t, &v)
	return v
}

// Objects is the body as a JSON array of objects.
func (a Answer) Objects(t testing.TB) []map[string]any {
	t.Helper()
	var v []map[string]any
	a.Into(t, &v)
	return v
}

// ErrorText is the value of the only key of an error envelope.
func (a Answer) ErrorText(t testing.TB) string {
	t.Helper()
	require.Equal(t, "application/json", mediaType(a.Header), "error answers are JSON")
	body := a.Object(t)
	require.Len(t, body, 1, "an error envelope has exactly one key: %s", a)
	text, ok := body["error"].(string)
	require.True(t, ok, "an error envelope holds a text: %s", a)
	return text
}

// mediaType is Content-Type without its parameters.
func mediaType(h http.Header) string {
	value := h.Get("Content-Type")
	if i := bytes.IndexByte([]byte(value), ';'); i >= 0 {
		value = value[:i]
	}
	return value
}

func decode(a Answer, v any) error {
	if err := json.Unmarshal(a.Body, v); err != nil {
		return fmt.Errorf("decode %s: %w", a, err)
	}
	return nil
}
