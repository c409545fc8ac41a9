package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	maxAnswer = 1 << 20 // bytes that are read of an answer
	maxShown  = 200     // characters that are shown of an error
	// maxRetryAfter is the longest that a broker is believed that asks to come again.
	maxRetryAfter = 5 * time.Second
)

// client calls one installation.
type client struct {
	base, token string
	http        *http.Client
}

func newClient(base, token string) *client {
	return &client{base: base, token: token, http: &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment},
		// A broker redirects nowhere: what does is something else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call sends a request and decodes the answer, which must have one of the statuses. It
// comes again for as long as it is told to.
func (c *client) call(ctx context.Context, method, path string, body, into any, want ...int) (int, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return 0, err
		}
	}
	for {
		a, err := c.send(ctx, method, path, text)
		if err != nil {
			return 0, err
		}
		if a.status != http.StatusTooManyRequests {
			return a.status, a.decode(into, want)
		}
		if err := pause(ctx, a.retryAfter()); err != nil {
			return a.status, errors.Join(a.decode(into, want), err)
		}
	}
}

func (c *client) send(ctx context.Context, method, path string, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "queen-check")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return answer{}, context.Cause(ctx)
		}
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer{resp.StatusCode, resp.Header, text}, err
}

func (a answer) retryAfter() time.Duration {
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil || seconds < 1 {
		return time.Second
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}

// decode requires a status and, with it, JSON.
func (a answer) decode(into any, want []int) error {
	for _, status := range want {
		if a.status != status {
			continue
		}
		if into == nil || status == http.StatusNoContent {
			return nil
		}
		if err := json.Unmarshal(a.body, into); err != nil {
			return fmt.Errorf("answered %d with %s, which a broker does not: is this a Queen?", a.status, a.kind())
		}
		return nil
	}
	return a.refusal()
}

// refusal tells of an answer that was not wanted.
func (a answer) refusal() error {
	if a.status >= 300 && a.status < 400 {
		return fmt.Errorf("was sent elsewhere (%d, to %s): give the URL of the broker itself", a.status, a.header.Get("Location"))
	}
	text := a.errorText()
	switch {
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		return fmt.Errorf("was refused (%d): %s; --token or QUEEN_TOKEN is for such an installation", a.status, text)
	case text == "":
		return fmt.Errorf("answered %d with %s, which a broker does not: is this a Queen?", a.status, a.kind())
	}
	return fmt.Errorf("answered %d: %s", a.status, text)
}

// errorText is what a broker says of a refusal: in an object, or of an item.
func (a answer) errorText() string {
	type refusal struct {
		Error string `json:"error"`
	}
	var one refusal
	if json.Unmarshal(a.body, &one) == nil && one.Error != "" {
		return shorten(one.Error)
	}
	var many []refusal
	if json.Unmarshal(a.body, &many) == nil {
		for _, item := range many {
			if item.Error != "" {
				return shorten(item.Error)
			}
		}
	}
	return ""
}

// kind is what the body is.
func (a answer) kind() string {
	if len(a.body) == 0 {
		return "nothing in it"
	}
	if media, _, err := mime.ParseMediaType(a.header.Get("Content-Type")); err == nil {
		return media
	}
	return "something unnamed"
}

func shorten(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > maxShown {
		return string(r[:maxShown]) + "..."
	}
	return s
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
