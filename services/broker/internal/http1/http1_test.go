package http1_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/services/broker/internal/http1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handler tells what it was asked, and does what the path says.
func handler(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/unread":
	case "/abort":
		panic(http.ErrAbortHandler)
	case "/empty":
		return
	case "/nothing":
		w.WriteHeader(http.StatusNoContent)
		return
	case "/unchanged":
		w.WriteHeader(http.StatusNotModified)
		return
	case "/announced":
		w.Header().Set("Content-Length", "5")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Lines", "a\r\nb")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `"abc"`)
		return
	case "/close":
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "bye")
		return
	case "/pieces":
		for range 10 {
			_, _ = io.WriteString(w, strings.Repeat("piece ", 100))
		}
		return
	}
	var body []byte
	var err error
	if r.URL.Path != "/unread" {
		body, err = io.ReadAll(r.Body)
	}
	var fields []string
	for key, values := range r.Header {
		if key != "Content-Length" { // net/http lists it, nobody looks there
			fields = append(fields, fmt.Sprintf("%s=%q", key, values))
		}
	}
	slices.Sort(fields)
	text := fmt.Sprintf("%s %s path=%q raw=%q query=%q uri=%q host=%q length=%d close=%v %v body=%d %.40q err=%v",
		r.Method, r.Proto, r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.RequestURI, r.Host, r.ContentLength, r.Close, fields, len(body), body, err)
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	_, _ = io.WriteString(w, text)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return ln
}

func other(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn),
	}
}

// serve starts a server of this package.
func serve(t *testing.T, h http.HandlerFunc) (*http1.Server, string) {
	t.Helper()
	rest, ln := other(h), listen(t)
	s := http1.New(http1.Config{Handler: h, Other: rest, Log: slog.New(slog.DiscardHandler)})
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		require.NoError(t, s.Shutdown(ctx))
		require.NoError(t, rest.Shutdown(ctx))
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
	return s, ln.Addr().String()
}

// reference starts net/http alone.
func reference(t *testing.T) string {
	t.Helper()
	s, ln := other(http.HandlerFunc(handler)), listen(t)
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close() })
	return ln.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	return conn
}

// talk sends pieces and returns all answers, with their fields in order, until the
// server closes the connection.
func talk(t *testing.T, addr string, pieces ...string) string {
	t.Helper()
	conn := dial(t, addr)
	go func() {
		for i, piece := range pieces {
			if i > 0 {
				time.Sleep(20 * time.Millisecond)
			}
			if piece == hangUp {
				_ = conn.(*net.TCPConn).CloseWrite()
				return
			}
			if _, err := io.WriteString(conn, piece); err != nil {
				return
			}
		}
	}()
	r, out := bufio.NewReader(conn), strings.Builder{}
	for {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return out.String()
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		res.Header.Del("Date")
		res.Header.Del("Content-Length")
		if len(res.TransferEncoding) > 0 { // how a long answer is framed is the server's choice
			res.ContentLength = int64(len(body))
		}
		fmt.Fprintf(&out, "%s %v length=%d close=%v err=%v %s\n", res.Status, res.Header, res.ContentLength, res.Close, err, body)
	}
}

const hangUp = "(no more)"

const end = "GET /end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

func TestAnswersAreThoseOfTheStandardLibrary(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, handler)
	want := reference(t)
	long := strings.Repeat("x", 300<<10)
	for name, pieces := range map[string][]string{
		"get":                  {"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"},
		"post":                 {"POST /a HTTP/1.1\r\nHost: x:80\r\nContent-Length: 3\r\n\r\nabc"},
		"put and delete":       {"PUT /a HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\nDELETE /b HTTP/1.1\r\nHOST: x\r\n\r\n"},
		"fields":               {"GET /a HTTP/1.1\r\nHost: x\r\nuser-agent:  me \r\nX-a: 1\r\nx-A: 2\r\nAccept:\r\nConnection: Keep-Alive\r\n\r\n"},
		"escapes":              {"GET /a%2Fb%20c/ü HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a%2Fb%20c?x=%2F HTTP/1.1\r\nHost: x\r\n\r\n"},
		"same again":           {"POST /a HTTP/1.1\r\nHost: x\r\nX: 1\r\nContent-Length: 1\r\n\r\n1", "POST /a HTTP/1.1\r\nHost: x\r\nX: 1\r\nContent-Length: 2\r\n\r\n22", "POST /a HTTP/1.1\r\nHost: x\r\nX: 1\r\n\r\n", "POST /a HTTP/1.1\r\nContent-Length: 1\r\nHost: x\r\nX: 1\r\n\r\n3"},
		"one field less":       {"GET /a HTTP/1.1\r\nHost: x\r\nA: 1\r\nB: 2\r\n\r\n", "GET /a HTTP/1.1\r\nHost: x\r\nA: 1\r\n\r\n", "GET /a HTTP/1.1\r\nHost: x\r\nA: 1\r\nB: 2\r\n\r\n", "GET /b HTTP/1.1\r\nHost: y\r\nA: 1\r\nB: 2\r\n\r\n"},
		"pipelined":            {strings.Repeat("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 5)},
		"pipelined, much":      {strings.Repeat("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 200)},
		"head in pieces":       {"POST /a HT", "TP/1.1\r\nHost: x\r\nContent-Le", "ngth: 3\r\n\r\nab", "c"},
		"body in pieces":       {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n", "abc", "def"},
		"body of 100 KiB":      {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 102400\r\n\r\n" + long[:102400], "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"body of 300 KiB":      {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 307200\r\n\r\n" + long, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"unread body":          {"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 102400\r\n\r\n" + long[:102400], "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"unread small body":    {"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcdeGET /a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"long head":            {"GET /a HTTP/1.1\r\nHost: x\r\nX: " + long[:8000] + "\r\n\r\n"},
		"chunked":              {"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"},
		"chunked and a length": {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"},
		"expect":               {"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n", "abc"},
		"head":                 {"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"options":              {"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"},
		"absolute":             {"GET http://y/a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"two slashes":          {"GET //a/b HTTP/1.1\r\nHost: x\r\n\r\n"},
		"fragment":             {"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n"},
		"version 1.0":          {"GET /a HTTP/1.0\r\n\r\n"},
		"version 2":            {"GET /a HTTP/2.0\r\nHost: x\r\n\r\n"},
		"two lengths":          {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"},
		"equal lengths":        {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"},
		"bad length":           {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc"},
		"list of lengths":      {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc"},
		"spaced length":        {"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc"},
		"no host":              {"GET /a HTTP/1.1\r\n\r\n"},
		"two hosts":            {"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"},
		"bad host":             {"GET /a HTTP/1.1\r\nHost: x y\r\n\r\n"},
		"folded":               {"GET /a HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n"},
		"bare line feeds":      {"GET /a HTTP/1.1\nHost: x\n\n"},
		"a bare line feed":     {"GET /a HTTP/1.1\r\nHost: x\r\nX: a\nContent-Length: 3\r\n\r\nabc"},
		"a carriage return":    {"GET /a HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n"},
		"a null":               {"GET /a HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n"},
		"no colon":             {"GET /a HTTP/1.1\r\nHost: x\r\nabc\r\n\r\n"},
		"no name":              {"GET /a HTTP/1.1\r\nHost: x\r\n: abc\r\n\r\n"},
		"spaces in the line":   {"GET  /a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"a blank line before":  {"\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"nonsense":             {"\x16\x03\x01\x02\x00\x01"},
		"lower case":           {"get /a HTTP/1.1\r\nHost: x\r\n\r\n"},
		"empty":                {"GET /empty HTTP/1.1\r\nHost: x\r\n\r\n"},
		"nothing":              {"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"},
		"unchanged":            {"GET /unchanged HTTP/1.1\r\nHost: x\r\n\r\n"},
		"announced":            {"GET /announced HTTP/1.1\r\nHost: x\r\n\r\n"},
		"close":                {"GET /close HTTP/1.1\r\nHost: x\r\n\r\n"},
		"answer in pieces":     {"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n"},
		"abort":                {"GET /abort HTTP/1.1\r\nHost: x\r\n\r\n"},
		"cut off, unread":      {"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc", hangUp},
		"nothing at all":       {hangUp},
		"half a head":          {"POST /a HTTP/1.1\r\nHo", hangUp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, talk(t, want, append(pieces, end)...), talk(t, addr, append(pieces, end)...))
		})
	}
}

func TestABodyThatEndsEarlyEndsTheConnection(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, handler)
	got := talk(t, addr, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc", hangUp)
	require.Contains(t, got, "err=unexpected EOF")
	require.Contains(t, got, "close=true")
}

// A field of the request before, or of another connection, never shows.
func TestNothingOfARequestShowsInTheNext(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, handler)
	conn := dial(t, addr)
	r := bufio.NewReader(conn)
	for i := range 50 {
		length := strings.Repeat("z", i%7)
		_, err := fmt.Fprintf(conn, "POST /p%d HTTP/1.1\r\nHost: h%d\r\nX-%c: %d\r\nContent-Length: %d\r\n\r\n%s", i%3, i%2, 'A'+i%5, i, len(length), length)
		require.NoError(t, err)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, fmt.Sprintf(`POST HTTP/1.1 path="/p%d" raw="" query="" uri="/p%d" host="h%d" length=%d close=false [X-%c=["%d"]] body=%d %q err=<nil>`,
			i%3, i%3, i%2, len(length), 'A'+i%5, i, len(length), length), string(body))
	}
}

func TestAClientThatLeavesEndsTheContext(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 2)
	_, addr := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
		defer cancel()
		<-ctx.Done()
		ended <- ctx.Err()
		ended <- r.Context().Err()
	})
	for _, request := range []string{
		"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
	} {
		conn := dial(t, addr)
		_, err := io.WriteString(conn, request)
		require.NoError(t, err)
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, conn.Close())
		require.ErrorIs(t, <-ended, context.Canceled)
		require.ErrorIs(t, <-ended, context.Canceled)
	}
}

// Whoever keeps the context is told that the request is over; the watch ends with
// the request, and what the client sent meanwhile is its next request.
func TestTheContextEndsWithTheRequest(t *testing.T) {
	t.Parallel()
	kept := make(chan context.Context, 3)
	_, addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/watch" {
			select {
			case <-r.Context().Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		kept <- r.Context()
		handler(w, r)
	})
	conn := dial(t, addr)
	r := bufio.NewReader(conn)
	send := func(path string) {
		_, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
	}
	receive := func(path string) {
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Contains(t, string(body), path)
		ctx := <-kept
		<-ctx.Done()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.Nil(t, ctx.Value("key"))
	}
	send("/a")
	receive("/a")
	send("/watch")
	receive("/watch")
	send("/watch")
	time.Sleep(10 * time.Millisecond)
	send("/b") // ahead, into the watch
	receive("/watch")
	receive("/b")
}

func TestShutdownLetsRequestsEnd(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	h := func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-goOn
		_, _ = io.WriteString(w, "done")
	}
	s, addr := serve(t, h)
	idle, busy := dial(t, addr), dial(t, addr)
	_, err := io.WriteString(busy, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(context.WithoutCancel(t.Context())) }()
	_, err = idle.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	close(goOn)
	res, err := http.ReadResponse(bufio.NewReader(busy), nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.True(t, res.Close)
	require.NoError(t, <-stopped)
}

func TestShutdownCutsAtItsDeadline(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan struct{})
	s, addr := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(ended)
	})
	conn := dial(t, addr)
	_, err := io.WriteString(conn, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Shutdown(ctx), context.Canceled)
	<-ended
}

// A connection that is taken has no deadline and nobody else that reads, and can be
// given back.
func TestAConnectionIsTakenAndGivenBack(t *testing.T) {
	t.Parallel()
	var s *http1.Server
	ready := make(chan struct{})
	s, addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/take" {
			handler(w, r)
			return
		}
		<-ready
		select {
		case <-r.Context().Done():
		case <-time.After(20 * time.Millisecond):
		}
		nc, early, ok := http1.Take(w)
		if !ok {
			return
		}
		go func() {
			_, _ = fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len("taken"), "taken")
			s.Adopt(nc, early)
		}()
	})
	close(ready)
	const take, plain = "GET /take HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
	got := talk(t, addr, take+plain+take, plain, end)
	require.Equal(t, 2, strings.Count(got, "taken"))
	require.Equal(t, 5, strings.Count(got, "200 OK"))
	require.True(t, strings.HasSuffix(got, "\n"))
}
