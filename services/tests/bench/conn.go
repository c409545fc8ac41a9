package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// requestTimeout bounds one request; a long poll asks for less.
const requestTimeout = 30 * time.Second

const (
	readBuffer      = 32 << 10
	smallReadBuffer = 512
	maxReply        = 64 << 20
)

// conn is one persistent HTTP/1.1 connection to a broker, used by one worker. A
// request is written as it was prepared and its answer read into one buffer:
// net/http's client would cost the driver several times as much, on processors
// that it shares with the servers.
type conn struct {
	addr  string
	small bool // one of very many: keep the buffer small
	nc    net.Conn
	r     *bufio.Reader
	body  []byte
}

// reply is an answer; the body is valid until the next request.
type reply struct {
	status int
	body   []byte
}

// appendHead appends the head of a request whose body has that many bytes.
func appendHead(dst []byte, method, path string, length int) []byte {
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, path...)
	dst = append(dst, " HTTP/1.1\r\nHost: queen\r\n"...)
	if length > 0 {
		dst = append(dst, "Content-Type: application/json\r\nContent-Length: "...)
		dst = strconv.AppendInt(dst, int64(length), 10)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// newRequest is a whole request.
func newRequest(method, path, body string) []byte {
	return append(appendHead(nil, method, path, len(body)), body...)
}

// do sends a whole request and reads its answer. After an error the next call
// opens a new connection.
func (c *conn) do(ctx context.Context, request []byte) (reply, error) {
	if err := c.send(ctx, request); err != nil {
		return reply{}, err
	}
	return c.receive()
}

func (c *conn) send(ctx context.Context, request []byte) error {
	if c.nc == nil {
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", c.addr)
		if err != nil {
			return err
		}
		c.nc = nc
		if c.r == nil {
			size := readBuffer
			if c.small {
				size = smallReadBuffer
			}
			c.r = bufio.NewReaderSize(nc, size)
		}
		c.r.Reset(nc)
	}
	if err := c.nc.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return c.failed(err)
	}
	if _, err := c.nc.Write(request); err != nil {
		return c.failed(err)
	}
	return nil
}

func (c *conn) receive() (reply, error) {
	r, keep, err := c.read()
	if err != nil {
		return r, c.failed(err)
	}
	if !keep {
		c.close()
	}
	return r, nil
}

func (c *conn) failed(err error) error {
	c.close()
	return err
}

func (c *conn) close() {
	if c.nc != nil {
		_ = c.nc.Close()
		c.nc = nil
	}
}

var errReply = errors.New("unreadable answer")

// head is what of an answer's head matters to the reader.
type head struct {
	status  int
	length  int // -1: unknown
	chunked bool
	closing bool
}

func (c *conn) read() (_ reply, keep bool, err error) {
	h, err := c.readHead()
	if err != nil {
		return reply{}, false, err
	}
	c.body = c.body[:0]
	switch {
	case h.status == http.StatusNoContent:
	case h.chunked:
		err = c.readChunks()
	case h.length < 0:
		err = fmt.Errorf("%w: no length", errReply)
	default:
		err = c.readBody(h.length)
	}
	return reply{h.status, c.body}, !h.closing, err
}

func (c *conn) readHead() (head, error) {
	h := head{length: -1}
	line, err := c.line()
	if err != nil {
		return h, err
	}
	const version, digits = "HTTP/1.1 ", 3
	if len(line) < len(version)+digits || string(line[:len(version)]) != version {
		return h, fmt.Errorf("%w: %.60q", errReply, line)
	}
	h.status = number(line[len(version) : len(version)+digits])
	for {
		line, err = c.line()
		if err != nil || len(line) == 0 {
			return h, err
		}
		h.take(line)
	}
}

func (h *head) take(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		h.length = number(value)
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		h.chunked = bytes.EqualFold(value, []byte("chunked"))
	case bytes.EqualFold(name, []byte("Connection")):
		h.closing = bytes.EqualFold(value, []byte("close"))
	}
}

// line reads one line without its end.
func (c *conn) line() ([]byte, error) {
	line, err := c.r.ReadSlice('\n')
	return bytes.TrimRight(line, "\r\n"), err
}

// readBody appends n bytes to the body.
func (c *conn) readBody(n int) error {
	at := len(c.body)
	if at+n > maxReply {
		return fmt.Errorf("%w: more than %d bytes", errReply, maxReply)
	}
	if cap(c.body) < at+n {
		c.body = append(make([]byte, 0, max(at+n, 2*cap(c.body))), c.body...)
	}
	c.body = c.body[:at+n]
	_, err := io.ReadFull(c.r, c.body[at:])
	return err
}

func (c *conn) readChunks() error {
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return fmt.Errorf("%w: chunk of length %.20q", errReply, line)
		}
		if err := c.readBody(int(n)); err != nil {
			return err
		}
		if line, err = c.line(); err != nil || len(line) != 0 {
			return errors.Join(errReply, err)
		}
		if n == 0 {
			return nil
		}
	}
}

// number reads a non-negative decimal; anything else is -1.
func number(text []byte) int {
	if len(text) == 0 || len(text) > 18 {
		return -1
	}
	n := 0
	for _, b := range text {
		if b < '0' || b > '9' {
			return -1
		}
		n = n*10 + int(b-'0')
	}
	return n
}

// client spreads a worker's requests over brokers, one connection to each, as
// requests behind a round-robin balancer are spread.
type client struct {
	conns []*conn
	next  int
}

// newClient begins with a different broker for each worker.
func newClient(addrs []string, worker int) *client {
	c := &client{next: worker}
	for _, a := range addrs {
		c.conns = append(c.conns, &conn{addr: a})
	}
	return c
}

func (c *client) do(ctx context.Context, request []byte) (reply, error) {
	n := c.conns[c.next%len(c.conns)]
	c.next++
	return n.do(ctx, request)
}

func (c *client) close() {
	for _, n := range c.conns {
		n.close()
	}
}

// expect is do with one wanted status.
func (c *client) expect(ctx context.Context, request []byte, status int) (reply, error) {
	r, err := c.do(ctx, request)
	if err == nil && r.status != status {
		err = unexpected(request, r)
	}
	return r, err
}

// unexpected describes an answer that is not the wanted one.
func unexpected(request []byte, r reply) error {
	line, _, _ := bytes.Cut(request, []byte(" HTTP"))
	return fmt.Errorf("%s answered %d: %.200s", line, r.status, r.body)
}
