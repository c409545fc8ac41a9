package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Proxy stands between services and PostgreSQL and can be told to fail. It
// forwards bytes as they are; LoseAnswer and the holds look into them.
type Proxy struct {
	ln     net.Listener
	target string
	wg     sync.WaitGroup

	mu     sync.Mutex
	state  proxyState
	opened chan struct{} // closed while bytes flow
	links  map[*link]bool
	armed  []*order
	taken  int
}

type proxyState int

const (
	forwarding proxyState = iota
	stalled               // bytes stay where they are, as when packets are dropped
	refusing              // connections are reset
	closed
)

// order says what is to become of the next statement whose text holds sql.
type order struct {
	sql    string
	do     fate
	caught chan struct{} // closed once it has become of one
	free   chan struct{} // closed when what is held may go on
}

type fate int

const (
	loseAnswer fate = iota
	holdStatement
	holdAnswer
)

// Held is a statement, or its answer, that the proxy keeps to itself.
type Held struct {
	// Caught is closed once the proxy has it.
	Caught <-chan struct{}

	free func()
}

// Release lets it go on, now or once it is caught.
func (h *Held) Release() { h.free() }

// NewProxy is another way to the server of a database, until the test ends. Who
// goes it is a matter of PG_HOST and PG_PORT.
func NewProxy(t testing.TB, db *Database) *Proxy {
	t.Helper()
	p, err := newProxy(t.Context(), db.address)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func newProxy(ctx context.Context, target string) (*Proxy, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the proxy: %w", err)
	}
	p := &Proxy{ln: ln, target: target, opened: make(chan struct{}), links: map[*link]bool{}}
	close(p.opened)
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where brokers connect.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Stall stops every byte in both directions. Connections stay open, and new ones
// are taken and never answered.
func (p *Proxy) Stall() { p.become(stalled) }

// Cut resets every connection, and each new one, until Heal.
func (p *Proxy) Cut() {
	p.become(refusing)
	p.reset()
}

// Heal lets everything flow again. What a stall held back arrives now, as after
// a retransmission.
func (p *Proxy) Heal() { p.become(forwarding) }

// Move leads every further connection to another server, as an address does after a
// failover. Those that are open stay where they are.
func (p *Proxy) Move(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

func (p *Proxy) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// Close ends the proxy and whatever goes through it.
func (p *Proxy) Close() {
	p.become(closed)
	_ = p.ln.Close()
	p.reset()
	p.wg.Wait()
}

// Open counts the connections that go through.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Taken counts the connections that clients have opened so far, whatever became of them.
func (p *Proxy) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// LoseAnswer cuts the next connection on which the server has answered a
// statement whose text holds sql, without passing the answer on: the statement
// has been committed and its client does not know. The channel is closed then.
func (p *Proxy) LoseAnswer(sql string) <-chan struct{} { return p.arm(sql, loseAnswer).caught }

// HoldStatement keeps the next statement whose text holds sql from the server: its
// client waits and the server knows nothing, until Release.
func (p *Proxy) HoldStatement(sql string) *Held { return p.hold(sql, holdStatement) }

// HoldAnswer keeps the answer of the next statement whose text holds sql from its
// client: the statement has been committed and its client waits, until Release.
func (p *Proxy) HoldAnswer(sql string) *Held { return p.hold(sql, holdAnswer) }

func (p *Proxy) hold(sql string, do fate) *Held {
	o := p.arm(sql, do)
	return &Held{Caught: o.caught, free: sync.OnceFunc(func() { close(o.free) })}
}

func (p *Proxy) arm(sql string, do fate) *order {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := &order{sql: sql, do: do, caught: make(chan struct{}), free: make(chan struct{})}
	p.armed = append(p.armed, o)
	return o
}

func (p *Proxy) become(s proxyState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == stalled && s != stalled {
		close(p.opened)
	}
	if s == stalled && p.state != stalled {
		p.opened = make(chan struct{})
	}
	p.state = s
}

// reset ends all connections with a RST on both sides.
func (p *Proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// pass waits until bytes may flow; false tells that they never will.
func (p *Proxy) pass() bool {
	p.mu.Lock()
	opened := p.opened
	p.mu.Unlock()
	<-opened
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state == forwarding || p.state == stalled
}

func (p *Proxy) accept() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.taken++
		p.mu.Unlock()
		p.wg.Go(func() { p.serve(conn) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	l := &link{proxy: p, client: client, statements: map[string]string{}, ended: make(chan struct{})}
	defer l.reset()
	if !p.pass() {
		return
	}
	server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.address())
	if err != nil {
		return
	}
	l.server = server
	if !p.enter(l) {
		return
	}
	defer p.leave(l)
	var wg sync.WaitGroup
	wg.Go(func() { l.copy(l.server, l.client, l.asked) })
	wg.Go(func() { l.copy(l.client, l.server, l.answered) })
	wg.Wait()
}

func (p *Proxy) enter(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == closed || p.state == refusing {
		return false
	}
	p.links[l] = true
	return true
}

func (p *Proxy) leave(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// link is one connection through the proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	in         frontend          // what the client has sent so far
	statements map[string]string // name -> SQL text
	ended      chan struct{}
	end        sync.Once

	mu      sync.Mutex
	waiting *order // what is to become of the answer that is on its way
	held    []byte // of it
}

func (l *link) reset() {
	l.end.Do(func() { close(l.ended) })
	for _, c := range []net.Conn{l.client, l.server} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		}
	}
}

// copy forwards one direction until either side ends; see tells what of a chunk
// goes on, and ends the connection with an error.
func (l *link) copy(dst, src net.Conn, see func([]byte) ([]byte, error)) {
	defer l.reset()
	buffer := make([]byte, 32<<10)
	for {
		n, err := src.Read(buffer)
		if n > 0 {
			if !l.proxy.pass() {
				return
			}
			chunk, lost := see(buffer[:n])
			if lost != nil {
				return
			}
			if _, err := dst.Write(chunk); err != nil {
				return
			}
		}
		if err != nil {
			l.proxy.pass() // the end of a connection is held back too
			return
		}
	}
}

// asked looks at what the client sends: a Bind of the statement that an order
// names marks the connection.
func (l *link) asked(chunk []byte) ([]byte, error) {
	var held *order
	mark := func(sql string) {
		if o := l.mark(sql); o != nil {
			held = o
		}
	}
	l.in.feed(chunk, func(kind byte, body []byte) {
		switch kind {
		case 'P': // Parse: name, text
			name, rest, _ := strings.Cut(string(body), "\x00")
			text, _, _ := strings.Cut(rest, "\x00")
			l.statements[name] = text
		case 'B': // Bind: portal, statement name
			_, rest, _ := strings.Cut(string(body), "\x00")
			name, _, _ := strings.Cut(rest, "\x00")
			mark(l.statements[name])
		case 'Q': // simple query
			mark(string(body))
		}
	})
	if held != nil && !l.keep(held) {
		return nil, errLost
	}
	return chunk, nil
}

// keep waits until what an order holds may go on; false tells that the connection
// has ended instead.
func (l *link) keep(o *order) bool {
	close(o.caught)
	select {
	case <-o.free:
		return true
	case <-l.ended:
		return false
	}
}

// mark takes the order that names a statement, and answers it if the statement
// itself is to be held.
func (l *link) mark(sql string) *order {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.armed, func(o *order) bool { return strings.Contains(sql, o.sql) })
	if i < 0 {
		return nil
	}
	o := p.armed[i]
	p.armed = slices.Delete(p.armed, i, i+1)
	if o.do == holdStatement {
		return o
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = o
	return nil
}

var errLost = errors.New("the answer is lost")

// answered holds the answer of a marked statement back until the server is ready
// for the next one outside a transaction, which is when it has committed.
func (l *link) answered(chunk []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		return chunk, nil
	}
	l.held = append(l.held, chunk...)
	const ready = "Z\x00\x00\x00\x05" // and the state of the transaction
	text := string(l.held)
	switch {
	case strings.HasSuffix(text, ready+"I"):
		return l.judge()
	case strings.HasSuffix(text, ready+"T"), strings.HasSuffix(text, ready+"E"):
		out := l.held
		l.held = nil
		return out, nil
	}
	return nil, nil
}

// judge does with a whole answer what was ordered.
func (l *link) judge() ([]byte, error) {
	o, out := l.waiting, l.held
	l.waiting, l.held = nil, nil
	if o.do == loseAnswer {
		close(o.caught)
		return nil, errLost
	}
	l.mu.Unlock() // the client may go on asking
	kept := l.keep(o)
	l.mu.Lock()
	if !kept {
		return nil, errLost
	}
	return out, nil
}

// frontend cuts the client's side of the protocol into messages.
type frontend struct {
	started bool // the start-up message, which has no kind, is over
	rest    []byte
}

// feed calls see with every message that is complete.
func (f *frontend) feed(chunk []byte, see func(kind byte, body []byte)) {
	f.rest = append(f.rest, chunk...)
	for {
		head := 0
		if f.started {
			head = 1
		}
		if len(f.rest) < head+4 {
			return
		}
		n := int(f.rest[head])<<24 | int(f.rest[head+1])<<16 | int(f.rest[head+2])<<8 | int(f.rest[head+3])
		if len(f.rest) < head+n {
			return
		}
		if f.started {
			see(f.rest[0], f.rest[head+4:head+n])
		}
		f.started = true
		f.rest = f.rest[head+n:]
	}
}
