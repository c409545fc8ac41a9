package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnSpeaksToARealServer(t *testing.T) {
	t.Parallel()
	opened := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		opened[r.RemoteAddr] = true
		switch r.URL.Path {
		case "/nothing":
			w.WriteHeader(http.StatusNoContent)
		case "/chunked":
			for range 3 {
				_, _ = w.Write([]byte(strings.Repeat("x", 40_000)))
				w.(http.Flusher).Flush()
			}
		case "/bye":
			w.Header().Set("Connection", "close")
			_, _ = w.Write([]byte("bye"))
		default:
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(append([]byte(r.Method+" "+r.URL.RawQuery+" "), body...))
		}
	}))
	t.Cleanup(server.Close)
	c := &conn{addr: server.Listener.Addr().String()}
	t.Cleanup(c.close)
	ask := func(method, path, body string) reply {
		r, err := c.do(t.Context(), newRequest(method, path, body))
		require.NoError(t, err)
		return r
	}
	r := ask(http.MethodPost, "/echo?a=b", strings.Repeat("long ", 50_000))
	require.Equal(t, http.StatusCreated, r.status)
	require.Equal(t, "POST a=b "+strings.Repeat("long ", 50_000), string(r.body))
	r = ask(http.MethodGet, "/nothing", "")
	require.Equal(t, http.StatusNoContent, r.status)
	require.Empty(t, r.body)
	require.Len(t, ask(http.MethodGet, "/chunked", "").body, 120_000)
	require.Len(t, opened, 1, "the connection is kept")
	require.Equal(t, "bye", string(ask(http.MethodGet, "/bye", "").body))
	require.Equal(t, "GET  ", string(ask(http.MethodGet, "/echo", "").body))
	require.Len(t, opened, 2, "a closed connection is opened again")
}

func TestConnRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no HTTP":          "hello\r\n\r\n",
		"no length":        "HTTP/1.1 200 OK\r\n\r\nbody",
		"a bad length":     "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nbody",
		"a huge body":      "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nbody",
		"a bad chunk":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"a short body":     "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbody",
		"a chunk too long": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := net.Pipe()
			t.Cleanup(func() { _ = near.Close() })
			go func() {
				_, _ = io.WriteString(far, text)
				_ = far.Close()
			}()
			c := &conn{nc: near, r: bufio.NewReader(near)}
			_, err := c.receive()
			require.Error(t, err)
			require.Nil(t, c.nc, "the connection is given up")
		})
	}
}

func TestClientsTakeTurnsAmongBrokers(t *testing.T) {
	t.Parallel()
	var addrs []string
	for _, name := range []string{"a", "b", "c"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, name)
		}))
		t.Cleanup(server.Close)
		addrs = append(addrs, server.Listener.Addr().String())
	}
	c := newClient(addrs, 1)
	t.Cleanup(c.close)
	seen := ""
	for range 4 {
		r, err := c.expect(t.Context(), newRequest(http.MethodGet, "/", ""), http.StatusOK)
		require.NoError(t, err)
		seen += string(r.body)
	}
	require.Equal(t, "bcab", seen)
	_, err := c.expect(t.Context(), newRequest(http.MethodGet, "/x", ""), http.StatusTeapot)
	require.EqualError(t, err, "GET /x answered 200: c")
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"0": 0, "201": 201, "": -1, "-1": -1, "1x": -1, "9999999999999999999": -1} {
		require.Equal(t, want, number([]byte(text)), text)
	}
}
