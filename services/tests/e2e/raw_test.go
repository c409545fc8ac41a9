package e2e_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/queenmq/queen/services/tests/harness"
)

// chunkedPost sends a body without declaring its length.
func chunkedPost(t *testing.T, url string, body []byte) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.MultiReader(bytes.NewReader(body)))
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode
}

// hashes are the 16-byte hashes of ids, one after the other.
func hashes(ids ...string) []byte {
	var out []byte
	for _, id := range ids {
		sum := xxh3.HashString128(id).Bytes()
		out = append(out, sum[:]...)
	}
	return out
}

// rawConn is one keep-alive connection whose bytes the test sees.
type rawConn struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, b *harness.Broker) *rawConn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.URL, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return &rawConn{Conn: conn, in: bufio.NewReader(conn)}
}

// send writes one request.
func (c *rawConn) send(t *testing.T, request string) {
	t.Helper()
	_, err := io.WriteString(c, strings.ReplaceAll(request, "\n", "\r\n"))
	require.NoError(t, err)
}

// head reads up to the empty line after the headers.
func (c *rawConn) head(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for {
		line, err := c.in.ReadString('\n')
		require.NoError(t, err)
		if line == "\r\n" {
			return out.String()
		}
		out.WriteString(line)
	}
}

func TestEmptyPopIsABare204(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{}`)
	for name, path := range map[string]string{
		"wildcard":  "/api/v1/pop/queue/" + q,
		"partition": "/api/v1/pop/queue/" + q + "/partition/p",
		"discovery": "/api/v1/pop?namespace=" + q,
		"long poll": "/api/v1/pop/queue/" + q + "?wait=true&timeout=200",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, b)
			for range 3 {
				c.send(t, "GET "+path+" HTTP/1.1\nHost: queen\n\n")
				head := strings.ToLower(c.head(t))
				require.True(t, strings.HasPrefix(head, "http/1.1 204"), head)
				require.NotContains(t, head, "content-length:")
				require.NotContains(t, head, "transfer-encoding:")
				require.Zero(t, c.in.Buffered(), "no body follows")
			}
			// The connection is still in step: the next answer starts at the next byte.
			c.send(t, "GET /health HTTP/1.1\nHost: queen\n\n")
			require.True(t, strings.HasPrefix(c.head(t), "HTTP/1.1 200"))
		})
	}
}

func TestExpectContinueIsHonoured(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	c := dial(t, b)
	body := `{"items":[{"queue":"` + q + `","payload":1}]}`
	c.send(t, "POST /api/v1/push HTTP/1.1\nHost: queen\nExpect: 100-continue\nTransfer-Encoding: chunked\n\n")
	require.True(t, strings.HasPrefix(c.head(t), "HTTP/1.1 100"))
	c.send(t, strconv.FormatInt(int64(len(body)), 16)+"\n"+body+"\n0\n\n")
	require.True(t, strings.HasPrefix(c.head(t), "HTTP/1.1 201"))
}

func TestHalfARequestStoresNothing(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	c := dial(t, b)
	c.send(t, "POST /api/v1/push HTTP/1.1\nHost: queen\nContent-Length: 1000\n\n"+`{"items":[{"queue":"`+q+`","payload":1}]}`)
	require.NoError(t, c.Close())
	// Another request is answered only after the broker could have seen both.
	b.PushQueued(t, harness.Item{Queue: q + "-2", Payload: 1})
	require.False(t, b.DB.HasQueue(t, q))
}
