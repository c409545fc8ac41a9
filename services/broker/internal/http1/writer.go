package http1

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// writer is the http.ResponseWriter of a connection. What a handler writes with its
// length announced goes out at once, anything else when the handler is done.
type writer struct {
	conn   *conn
	header http.Header
	status int // 0: not decided
	sent   bool
	body   []byte // that waits
}

var (
	errSent  = errors.New("the answer has been sent")
	errTaken = errors.New("the connection was taken")
)

func (w *writer) begin() {
	if w.header == nil {
		w.header = make(http.Header, 4)
	}
	clear(w.header)
	w.status, w.sent, w.body = 0, false, nil
}

// Header implements http.ResponseWriter.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.conn.taken:
		return 0, errTaken
	case w.sent:
		return 0, errSent
	case !bodyAllowed(w.status):
		return 0, http.ErrBodyNotAllowed
	case len(w.body) == 0 && w.announced(len(p)):
		if err := w.send(p); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	w.body = append(w.body, p...)
	return len(p), nil
}

func bodyAllowed(status int) bool {
	return status >= http.StatusOK && status != http.StatusNoContent && status != http.StatusNotModified
}

// announced says whether n bytes are the whole body.
func (w *writer) announced(n int) bool {
	v := w.header["Content-Length"]
	if len(v) != 1 {
		return false
	}
	announced, err := strconv.Atoi(v[0])
	return err == nil && announced == n
}

// finish sends what has not been sent.
func (w *writer) finish() {
	if w.sent {
		return
	}
	w.WriteHeader(http.StatusOK)
	if bodyAllowed(w.status) {
		if len(w.body) > 0 && len(w.header["Content-Type"]) == 0 {
			w.header.Set("Content-Type", http.DetectContentType(w.body))
		}
		w.header.Set("Content-Length", strconv.Itoa(len(w.body)))
	}
	_ = w.send(w.body)
	w.body = nil
}

// joined is up to where head and body are copied together: one buffer costs the
// kernel less than two.
const joined = 16 << 10

var heads = sync.Pool{New: func() any { return new([]byte) }}

func (w *writer) send(body []byte) error {
	c := w.conn
	w.sent = true
	c.broken = c.broken || strings.EqualFold(w.header.Get("Connection"), "close")
	c.drain()
	buf := heads.Get().(*[]byte)
	defer heads.Put(buf)
	out := w.appendHead((*buf)[:0])
	var err error
	if len(body) <= joined {
		out = append(out, body...)
		_, err = c.nc.Write(out)
	} else {
		parts := net.Buffers{out, body}
		_, err = parts.WriteTo(c.nc)
	}
	*buf = out
	c.broken = c.broken || err != nil
	return err
}

func (w *writer) appendHead(dst []byte) []byte {
	c := w.conn
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(w.status), 10)
	dst = append(dst, ' ')
	dst = append(dst, http.StatusText(w.status)...)
	dst = append(dst, "\r\n"...)
	for key, values := range w.header {
		if key == "Connection" {
			continue
		}
		for _, v := range values {
			dst = append(append(dst, key...), ": "...)
			dst = append(appendLine(dst, v), "\r\n"...)
		}
	}
	if len(w.header["Date"]) == 0 {
		dst = appendDate(dst, time.Now())
	}
	if c.server.closing.Load() {
		c.broken = true
	}
	if c.broken {
		dst = append(dst, "Connection: close\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// appendLine keeps a value from beginning another line.
func appendLine(dst []byte, v string) []byte {
	at := len(dst)
	dst = append(dst, v...)
	for i, b := range dst[at:] {
		if b == '\r' || b == '\n' {
			dst[at+i] = ' '
		}
	}
	return dst
}

// date is the last one that was rendered.
type date struct {
	second int64
	line   []byte
}

var lastDate atomic.Pointer[date]

func appendDate(dst []byte, now time.Time) []byte {
	d := lastDate.Load()
	if d == nil || d.second != now.Unix() {
		d = &date{second: now.Unix(), line: now.UTC().AppendFormat([]byte("Date: "), http.TimeFormat+"\r\n")}
		lastDate.Store(d)
	}
	return append(dst, d.line...)
}

// SetReadDeadline is for http.ResponseController. It concerns the body, so there is
// nothing to do once that has arrived.
func (w *writer) SetReadDeadline(t time.Time) error {
	c := w.conn
	if c.arrived() {
		return nil
	}
	c.readBy = t
	return c.nc.SetReadDeadline(t)
}

// SetWriteDeadline is for http.ResponseController. The deadline may be later than
// asked for, by at most twice slack.
func (w *writer) SetWriteDeadline(t time.Time) error {
	c := w.conn
	if !t.IsZero() && !c.writeBy.Before(t) && c.writeBy.Sub(t) <= 2*slack {
		return nil
	}
	if !t.IsZero() {
		t = t.Add(slack)
	}
	c.writeBy = t
	return c.nc.SetWriteDeadline(t)
}

// take gives the connection away, with what the client has sent ahead.
func (w *writer) take() (nc net.Conn, early []byte, err error) {
	c := w.conn
	if w.sent || c.taken || c.bodyLeft > 0 {
		return nil, nil, errSent
	}
	c.stopWatch()
	_ = c.nc.SetDeadline(time.Time{})
	c.leave()
	return c.nc, bytes.Clone(c.buf[c.from:c.to]), nil
}

// Take takes the connection of a request over, as http.Hijacker does, from a writer
// of this package or one that wraps it. ok is false for any other.
func Take(rw http.ResponseWriter) (nc net.Conn, early []byte, ok bool) {
	for {
		switch v := rw.(type) {
		case *writer:
			nc, early, err := v.take()
			return nc, early, err == nil
		case interface{ Unwrap() http.ResponseWriter }:
			rw = v.Unwrap()
		default:
			return nil, nil, false
		}
	}
}
