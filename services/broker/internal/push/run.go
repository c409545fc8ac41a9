package push

import (
	"context"
	"log/slog"
	"slices"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/errtext"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// run sees every group to its verdict: bundles of groups first, then what they
// left over (segments without their duplicates, groups to be tried alone).
func (r *request) run(ctx context.Context) {
	todo := make([]*group, len(r.groups))
	for i := range r.groups {
		todo[i] = &r.groups[i]
	}
	var bundle []*group
	for len(todo) > 0 {
		bundle, todo = r.take(ctx, bundle[:0], todo)
		todo = append(todo, r.submit(ctx, bundle)...)
	}
}

// take packs groups from the front of todo into a bundle until a bound is met.
func (r *request) take(ctx context.Context, bundle, todo []*group) (taken, rest []*group) {
	size := 0
	for len(todo) > 0 {
		g := todo[0]
		if g.alone && len(bundle) > 0 {
			break
		}
		if err := r.pack(g); err != nil {
			r.fail(ctx, g, err)
			todo = todo[1:]
			continue
		}
		if len(bundle) > 0 && size+len(g.segment.Blob) > MaxBundleBytes {
			break // it stays packed and opens the next bundle
		}
		size += len(g.segment.Blob)
		bundle, todo = append(bundle, g), todo[1:]
		if g.alone || len(bundle) == MaxBundleLanes {
			break
		}
	}
	return bundle, todo
}

// submit repeats one bundle until it has an answer that stands, and returns the
// groups that have to be submitted again in another form.
func (r *request) submit(ctx context.Context, bundle []*group) (again []*group) {
	for attempt := 0; len(bundle) > 0; attempt++ {
		verdicts, err := r.call(ctx, bundle)
		if err == nil {
			return append(again, r.apply(ctx, bundle, verdicts)...)
		}
		switch {
		case retry.Definite(err):
		case store.Ambiguous(err):
			// It may have committed. Only a probe can tell, and only an open
			// window probes (design rule 6).
			if bundle = r.keepProbed(ctx, bundle, err); len(bundle) == 0 {
				return again
			}
		default:
			return append(again, r.isolate(ctx, bundle, err)...)
		}
		if !retry.Pause(ctx, attempt, r.deadline) {
			r.failAll(ctx, bundle, err)
			return again
		}
	}
	return again
}

// call submits a bundle once. From then on its segments are probed in full:
// whatever the answer, they may have been written (design rule 5).
func (r *request) call(ctx context.Context, bundle []*group) ([]store.PushVerdict, error) {
	segments := make([]store.PushSegment, len(bundle))
	for i, g := range bundle {
		segments[i] = g.segment
		g.segment.Verified, g.minted = store.VerifiedNone, false
	}
	verdicts, err := r.Store.PushMulti(ctx, segments)
	r.metrics.call(ctx, err)
	return verdicts, err
}

// isolate handles a refusal that repeating cannot mend: one group's fault must
// not fail its neighbours, so each goes alone.
func (r *request) isolate(ctx context.Context, bundle []*group, err error) (again []*group) {
	if len(bundle) == 1 {
		r.fail(ctx, bundle[0], err)
		return nil
	}
	for _, g := range bundle {
		g.alone = true
	}
	return slices.Clone(bundle) // the caller reuses its slice
}

// keepProbed fails the groups whose queue has no dedup window and returns the
// others. A queue that does not exist yet will have the default window.
func (r *request) keepProbed(ctx context.Context, bundle []*group, cause error) []*group {
	kept := bundle[:0]
	for _, g := range bundle {
		open, err := r.windowOpen(ctx, g.queue)
		switch {
		case err != nil:
			r.fail(ctx, g, err)
		case open:
			kept = append(kept, g)
		default:
			r.fail(ctx, g, cause)
		}
	}
	return kept
}

func (r *request) windowOpen(ctx context.Context, queue string) (bool, error) {
	if open, ok := r.windows[queue]; ok {
		return open, nil
	}
	var open bool
	err := retry.Read(ctx, r.deadline, func(ctx context.Context) error {
		settings, found, err := r.Store.QueueSettings(ctx, r.tenant, queue)
		open = !found || settings.DedupWindow > 0
		return err
	})
	if err != nil {
		return false, err
	}
	if r.windows == nil {
		r.windows = make(map[string]bool)
	}
	r.windows[queue] = open
	return open, nil
}

// pack builds the segment of a group from the items it still has.
func (r *request) pack(g *group) error {
	if g.packed {
		return nil
	}
	frames := r.frames.get(len(g.items))
	defer r.frames.put(frames)
	for _, i := range g.items {
		*frames = append(*frames, segment.Frame{
			MessageID:     r.results[i].MessageID,
			TransactionID: r.results[i].TransactionID,
			ProducerSub:   r.sub,
			Payload:       r.items[i].Payload,
		})
	}
	blob, hashes, err := r.Packer.Pack(*frames)
	if err != nil {
		return err
	}
	verified := store.VerifiedNone
	if g.minted {
		verified = store.VerifiedMinted
	}
	g.segment = store.PushSegment{
		Tenant: r.tenant, Queue: g.queue, Partition: g.partition,
		Count: len(g.items), Hashes: hashes, Blob: blob, Verified: verified,
	}
	g.packed = true
	return nil
}

func (r *request) failAll(ctx context.Context, bundle []*group, err error) {
	for _, g := range bundle {
		r.fail(ctx, g, err)
	}
}

// fail ends a group without storing it, or without knowing that it is stored.
func (r *request) fail(ctx context.Context, g *group, err error) {
	text := errtext.Of(err)
	for _, i := range g.items {
		r.results[i].Status, r.results[i].Error = wire.StatusFailed, text
	}
	r.failures.Do(func() {
		r.Logger.ErrorContext(ctx, "push failed", slog.String(logging.KeyQueue, g.queue), slog.String(logging.KeyPartition, g.partition),
			slog.Int(logging.KeyCount, len(g.items)), logging.Err(err))
	})
	g.items = nil
}
