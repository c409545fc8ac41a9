package hotlist

import (
	"hash/maphash"
	"math/bits"

	"github.com/google/uuid"
)

// Bounds of the open-addressing tables: they grow by a quarter once 85 of 100
// cells are taken, so that seven in ten always are.
const (
	loadNum, loadDen = 17, 20
	cellsMin         = 8
)

func crowded(used, cells int) bool { return used*loadDen >= cells*loadNum }

func larger(cells int) int { return max(cellsMin, cells+cells/4) }

// cell maps a hash onto n cells.
func cell(hash uint64, n int) int {
	hi, _ := bits.Mul64(hash, uint64(n))
	return int(hi)
}

// table numbers the lanes of one queue. Numbers are dense, and stay while anybody
// uses them.
type table struct {
	seed  maphash.Seed
	names vector[string]
	ids   vector[uuid.UUID] // uuid.Nil where unknown; may be shorter than names
	cells []int32           // number + 1 by hash of the name, 0 empty
	free  []int32
	used  int
}

func newTable(seed maphash.Seed) table { return table{seed: seed, names: vector[string]{wide: 2}} }

func (t *table) home(name string) int { return cell(maphash.String(t.seed, name), len(t.cells)) }

func (t *table) next(i int) int {
	if i++; i == len(t.cells) {
		return 0
	}
	return i
}

func (t *table) lookup(name string) (lane int32, ok bool) {
	if t.used == 0 {
		return none, false
	}
	for i := t.home(name); t.cells[i] != 0; i = t.next(i) {
		if lane = t.cells[i] - 1; *t.names.at(lane) == name {
			return lane, true
		}
	}
	return none, false
}

// insert numbers a name that the table does not have. The caller owns its bytes.
func (t *table) insert(name string) int32 {
	if crowded(t.used+1, len(t.cells)) {
		t.rehash(larger(len(t.cells)))
	}
	var lane int32
	if n := len(t.free); n > 0 {
		lane, t.free = t.free[n-1], t.free[:n-1]
	} else {
		lane = t.names.n
		t.names.extend(lane + 1)
	}
	*t.names.at(lane) = name
	t.used++
	t.put(lane)
	return lane
}

func (t *table) put(lane int32) {
	i := t.home(*t.names.at(lane))
	for t.cells[i] != 0 {
		i = t.next(i)
	}
	t.cells[i] = lane + 1
}

func (t *table) rehash(n int) {
	old := t.cells
	t.cells = make([]int32, n)
	for _, c := range old {
		if c != 0 {
			t.put(c - 1)
		}
	}
}

// remove gives a number back.
func (t *table) remove(lane int32) {
	i := t.home(*t.names.at(lane))
	for t.cells[i] != lane+1 {
		i = t.next(i)
	}
	// Close the gap: whatever probed across it moves into it.
	gap := i
	for j := t.next(i); t.cells[j] != 0; j = t.next(j) {
		home := t.home(*t.names.at(t.cells[j] - 1))
		if between(gap, home, j) {
			continue
		}
		t.cells[gap] = t.cells[j]
		gap = j
	}
	t.cells[gap] = 0
	*t.names.at(lane) = ""
	if lane < t.ids.n {
		*t.ids.at(lane) = uuid.Nil
	}
	t.free = append(t.free, lane)
	t.used--
}

// between says whether home lies in the half-open, cyclic range (gap, at].
func between(gap, home, at int) bool {
	if gap <= at {
		return gap < home && home <= at
	}
	return gap < home || home <= at
}

// name is empty for a number that is free, or none yet.
func (t *table) name(lane int32) string {
	if lane < t.names.n {
		return *t.names.at(lane)
	}
	return ""
}

func (t *table) id(lane int32) uuid.UUID {
	if lane < t.ids.n {
		return *t.ids.at(lane)
	}
	return uuid.Nil
}

func (t *table) setID(lane int32, id uuid.UUID) {
	t.ids.extend(lane + 1)
	*t.ids.at(lane) = id
}
