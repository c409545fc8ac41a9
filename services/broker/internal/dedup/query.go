package dedup

import (
	"cmp"
	"slices"
	"sync"
)

// row names a sidecar row that may hold an id.
type row struct {
	base   int64
	frames int
}

// manyRows is where looking for suspects ends. The newest are found first.
const manyRows = 1 << 16

// query is one segment's question, with the memory it needs.
type query struct {
	hashes []byte
	keys   []uint64
	fps    []uint32
	rows   []row // answers: in order and distinct after settle

	group, block []uint32 // what passed a filter
	wanted       wanted
	exact        map[[hashSize]byte]struct{}
}

type queries struct{ pool sync.Pool }

func (p *queries) get(hashes []byte) *query {
	q, ok := p.pool.Get().(*query)
	if !ok {
		q = &query{}
	}
	q.hashes, q.keys, q.fps, q.rows = hashes, q.keys[:0], q.fps[:0], q.rows[:0]
	for ; len(hashes) >= hashSize; hashes = hashes[hashSize:] {
		key := keyOf(hashes)
		q.keys, q.fps = append(q.keys, key), append(q.fps, fingerprint(key))
	}
	return q
}

// pooledIDs is the largest query kept for reuse.
const pooledIDs = 8192

func (p *queries) put(q *query) {
	if cap(q.keys) > pooledIDs || cap(q.rows) > pooledIDs {
		return
	}
	q.hashes, q.exact = nil, nil
	p.pool.Put(q)
}

func (q *query) add(r row) {
	if n := len(q.rows); n == 0 || q.rows[n-1] != r {
		q.rows = append(q.rows, r)
	}
}

func (q *query) overflow() bool { return len(q.rows) >= manyRows }

// settle puts the rows in order and each of them once.
func (q *query) settle() {
	slices.SortFunc(q.rows, func(a, b row) int { return cmp.Compare(a.base, b.base) })
	q.rows = slices.Compact(q.rows)
}

// match tells whether one of these hashes is asked for, exactly.
func (q *query) match(hashes []byte) bool {
	if q.exact == nil {
		q.exact = make(map[[hashSize]byte]struct{}, len(q.keys))
		for rest := q.hashes; len(rest) >= hashSize; rest = rest[hashSize:] {
			q.exact[[hashSize]byte(rest)] = struct{}{}
		}
		q.wanted.reset(q.fps)
	}
	for ; len(hashes) >= hashSize; hashes = hashes[hashSize:] {
		if !q.wanted.passes(fingerprint(keyOf(hashes))) {
			continue
		}
		if _, ok := q.exact[[hashSize]byte(hashes)]; ok {
			return true
		}
	}
	return false
}

// wanted is a small set of fingerprints that is asked thousands of times.
type wanted struct {
	mask [1024]uint64
	fps  []uint32
}

func (w *wanted) reset(fps []uint32) {
	for _, fp := range w.fps {
		w.mask[fp%65536/64] = 0
	}
	w.fps = append(w.fps[:0], fps...)
	slices.Sort(w.fps)
	for _, fp := range w.fps {
		w.mask[fp%65536/64] |= 1 << (fp % 64)
	}
}

// passes answers no for nearly everything that is not in the set.
func (w *wanted) passes(fp uint32) bool { return w.mask[fp%65536/64]&(1<<(fp%64)) != 0 }

func (w *wanted) has(fp uint32) bool {
	if !w.passes(fp) {
		return false
	}
	_, ok := slices.BinarySearch(w.fps, fp)
	return ok
}
