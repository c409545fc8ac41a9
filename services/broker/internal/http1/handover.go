package http1

import (
	"io"
	"net"
)

// single is a listener of one connection.
type single struct {
	conn net.Conn
	addr net.Addr
}

// Accept returns the connection, once.
func (s *single) Accept() (net.Conn, error) {
	conn := s.conn
	if s.conn = nil; conn == nil {
		return nil, io.EOF
	}
	return conn, nil
}

// Close does nothing: the connection lives on.
func (s *single) Close() error { return nil }

// Addr is the local address of the connection.
func (s *single) Addr() net.Addr { return s.addr }

// replay is a connection of which the beginning has been read.
type replay struct {
	net.Conn
	first []byte
}

// Read returns the beginning first.
func (r *replay) Read(p []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.first)
	r.first = r.first[n:]
	return n, nil
}

// Unwrap returns the connection itself, if nothing of its beginning is left.
func Unwrap(nc net.Conn) net.Conn {
	if r, ok := nc.(*replay); ok && len(r.first) == 0 {
		return r.Conn
	}
	return nc
}
