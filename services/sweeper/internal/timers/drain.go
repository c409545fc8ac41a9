package timers

import (
	"context"
	"sync"
	"time"

	"github.com/queenmq/queen/pkg/store"
)

const (
	// FireClaims is how many claims are gathered for one fire at most, while more is due
	// than they take. What a fire costs is lanes: a claim of 200 out of 100 lanes meets nearly
	// all of them, and so do 1000.
	FireClaims = 5
	// GatherTime is how long they are gathered, rests apart: the first of them are late
	// already.
	GatherTime = 100 * time.Millisecond
	// StopGrace is how long a stop waits for the fire that is under way.
	StopGrace = 5 * time.Second
	// GiveBackTime is how long giving timers back may take.
	GiveBackTime = 5 * time.Second
	// giveBackPause is between two tries of that.
	giveBackPause = 100 * time.Millisecond
)

// drain is one turn of claiming and firing.
type drain struct {
	*Sweeper
	*turns
	stop  <-chan struct{} // closed: begin nothing more
	began time.Time
	taken int  // timers claimed
	dry   bool // a claim took nothing

	mu      sync.Mutex
	sum     Report
	failed  bool // the database did not do what it should
	met     bool // another sweeper, at the same timers
	problem error
}

// drain claims and fires until nothing is due, or a bound is met: rows, half of the
// lease, the end of ctx. Claims run ahead of the fires by one batch.
//
// The bound of time keeps leases from lapsing before their fire. Without it two sweepers
// on a slow database would steal each other's timers for ever, and fire none.
func (s *Sweeper) drain(ctx context.Context) *drain {
	d := &drain{Sweeper: s, stop: ctx.Done(), began: time.Now()}
	var wake context.CancelFunc
	d.turns, wake = s.turns(ctx)
	defer wake()
	work, cancel := lasting(ctx, StopGrace)
	defer cancel()
	var workers sync.WaitGroup
	hands := make([]chan []volley, s.cfg.Parallelism)
	for i := range hands {
		hands[i] = make(chan []volley)
		workers.Go(func() {
			for volleys := range hands[i] {
				d.fireAll(work, volleys)
			}
		})
	}
	for !d.over() {
		if batch := d.gather(work); len(batch) > 0 {
			d.hand(work, hands, batch)
		}
	}
	for _, h := range hands {
		close(h)
	}
	workers.Wait()
	return d
}

// lasting is a context that outlives ctx by a grace.
func lasting(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var timer *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(grace, cancel)
	})
	return out, func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		cancel()
	}
}

// over tells that nothing more is to be claimed.
func (d *drain) over() bool {
	return d.dry || d.stopped() || d.taken >= d.cfg.CycleMaxRows || time.Since(d.began) >= d.cfg.Lease/2 ||
		!d.switches.fire() || d.obstructed()
}

// capped tells that a bound ended the drain, not the lack of timers.
func (d *drain) capped() bool {
	return d.taken >= d.cfg.CycleMaxRows || time.Since(d.began) >= d.cfg.Lease/2
}

func (d *drain) stopped() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}

// obstructed tells of a failure, or of a stale fire: its timers are given back, and
// this sweeper would claim them again and again.
func (d *drain) obstructed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed || d.met
}

// trouble notes a failure after which nothing more is to be claimed for now.
func (d *drain) trouble(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed, d.problem = true, err
}

// count adds to what the drain reports.
func (d *drain) count(add func(sum *Report)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	add(&d.sum)
}

// gather claims what one fire is to deliver: a claim that leaves something behind is
// followed by others, which cost the fire little. Each takes what was due next after the
// one before, so that one behind the other they are in order. They are not merged by how
// late they are: that is known to the millisecond, the order of a claim exactly.
func (d *drain) gather(ctx context.Context) (batch []*held) {
	var bytes int64
	var took time.Duration
	for claims := 0; claims < FireClaims*d.claims() && bytes < d.cfg.MaxFireBytes && took < GatherTime; claims++ {
		if d.giveWay(); d.over() {
			break
		}
		rows := d.ask()
		var claim []*held
		var err error
		took += d.call(false, func() { claim, err = d.claim(ctx, rows) })
		if err != nil {
			d.claimFailed(ctx, err)
			break
		}
		if len(claim) == 0 {
			d.dry = true
			break
		}
		batch = append(batch, claim...)
		bytes += d.weigh(claim)
		if len(claim) < rows/store.ClaimPart {
			break
		}
	}
	return batch
}

// ask is how many timers to claim. Their payloads are held in memory, and the database
// gives 32 MiB of them at most: while timers are large, fewer are asked for.
func (d *drain) ask() int {
	rows := min(d.pressure.rows(max(d.cfg.ClaimBatch/d.claims(), 1)), d.cfg.CycleMaxRows-d.taken)
	if d.weight > 0 {
		rows = min(rows, int(max(d.cfg.MaxFireBytes/d.weight, 1)))
	}
	return rows
}

// weigh returns the bytes of a claim and remembers those of a timer.
func (d *drain) weigh(claim []*held) int64 {
	var bytes int64
	for _, h := range claim {
		bytes += int64(len(h.Payload))
	}
	d.weight = bytes / int64(len(claim))
	return bytes
}

func (d *drain) claim(ctx context.Context, rows int) ([]*held, error) {
	claimed, err := d.db.TimersClaim(ctx, store.TimerClaim{
		Shards: store.Shards(d.first), Lease: d.cfg.Lease, Rows: rows, PerTenant: d.cfg.FireRatePerTenant,
	})
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]*held, len(claimed))
	for i := range claimed {
		out[i] = &held{ClaimedTimer: claimed[i], at: now}
	}
	d.taken += len(out)
	d.metrics.claimed(ctx, len(out))
	d.count(func(sum *Report) { sum.Claimed += len(out) })
	return out, nil
}

// hand packs a batch and hands it to the workers. It waits until they have fired the
// one before.
func (d *drain) hand(ctx context.Context, hands []chan []volley, batch []*held) {
	for i, timers := range d.loader.spread(batch, len(hands)) {
		if len(timers) == 0 { // no lane of this worker is in the batch
			continue
		}
		volleys, misfits, left := d.loader.load(timers)
		for _, m := range misfits {
			d.refused(ctx, []*held{m.timer}, m.err)
		}
		if len(volleys) > 0 {
			select {
			case hands[i] <- volleys:
			case <-d.stop:
				d.giveBack(ctx, timersOf(volleys), stopping)
			}
		}
		if len(left) > 0 {
			d.giveBack(ctx, left, giveBackReason{text: "others of its batch took long to pack"})
		}
	}
}
