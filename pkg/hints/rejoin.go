package hints

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/lifecycle"
)

const (
	// LookInterval is how often the peers are resolved while one is missing.
	LookInterval = 3 * time.Second
	// CalmInterval is how often they are while none is. A peer that gets lost is
	// looked for at once.
	CalmInterval = 15 * time.Second
	// aliasMemory is how long an address is left alone that answered and then was no
	// member's: this process under another address, or one behind a translator.
	aliasMemory = 30 * time.Second
	// joins is how many addresses are tried at once.
	joins = 4
)

// place is one resolved address of a configured peer.
type place struct {
	peer peer
	addr netip.AddrPort // zero when the name could not be resolved
}

// places is where peers were found at the last look.
type places struct {
	mu    sync.Mutex
	list  []place
	alias map[netip.AddrPort]time.Time // until when to leave it alone
}

// seek keeps the pool in one piece.
func (p *Pool) seek(ctx context.Context) {
	for ctx.Err() == nil {
		pause := p.timing.look
		if p.look(ctx) {
			pause = p.timing.calm
		}
		t := time.NewTimer(lifecycle.Backoff(0, pause, pause))
		select {
		case <-p.lost:
			p.forgetAliases()
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// look resolves the peers and asks those that are no members to join. It reports
// whether all of them are.
func (p *Pool) look(ctx context.Context) (complete bool) {
	found := p.resolve(ctx)
	p.places.mu.Lock()
	p.places.list = found
	p.places.mu.Unlock()

	complete = true
	var g errgroup.Group
	g.SetLimit(joins)
	for _, f := range found {
		if !f.addr.IsValid() {
			complete = false
			continue
		}
		if p.here(f.addr) {
			continue
		}
		complete = false
		g.Go(func() error { return p.join(f.addr) })
	}
	if err := g.Wait(); err != nil {
		return false
	}
	return complete
}

func (p *Pool) resolve(ctx context.Context) []place {
	var found []place
	seen := make(map[netip.AddrPort]bool)
	for _, q := range p.cfg.peers() {
		addrs, err := lookupAll(ctx, q.host)
		if err != nil || len(addrs) == 0 {
			found = append(found, place{peer: q})
			continue
		}
		for _, a := range addrs {
			at := netip.AddrPortFrom(a, uint16(q.port)) //nolint:gosec // ports were checked
			if !seen[at] {
				seen[at] = true
				found = append(found, place{q, at})
			}
		}
	}
	return found
}

// here says that nothing has to be done about an address.
func (p *Pool) here(at netip.AddrPort) bool {
	if p.isMember(at) {
		return true
	}
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	return time.Now().Before(p.places.alias[at])
}

// isMember says that the address is that of a live member or of this process.
func (p *Pool) isMember(at netip.AddrPort) bool {
	text := at.String()
	if text == p.self {
		return true
	}
	for _, m := range p.members.snapshot() {
		if m.addr == text {
			return true
		}
	}
	return false
}

// join exchanges states with an address.
func (p *Pool) join(at netip.AddrPort) error {
	if p.stopping.Load() {
		return nil
	}
	if _, err := p.list.Join([]string{at.String()}); err != nil {
		return err // nobody there, or nobody of ours; the library has logged it
	}
	if !p.isMember(at) {
		p.places.mu.Lock()
		p.places.alias[at] = time.Now().Add(aliasMemory)
		p.places.mu.Unlock()
	}
	return nil
}

func (p *Pool) forgetAliases() {
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	clear(p.places.alias)
}
