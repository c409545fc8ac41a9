package collector

// tallySearch is the number of queues beyond which they are looked up instead of
// searched for.
const tallySearch = 8

// Tally gathers what one request did to its queues. The zero one is empty. Most
// requests have one queue, which needs no memory of its own.
type Tally struct {
	first  part
	others []part
	count  int
	index  map[Key]int
}

type part struct {
	key    Key
	counts Counts
}

// Add counts for one of the queues.
func (t *Tally) Add(k Key, n *Counts) {
	if i := t.find(&k); i >= 0 {
		t.at(i).counts.Add(n)
		return
	}
	if t.count == 0 {
		t.first = part{k, *n}
	} else {
		t.others = append(t.others, part{k, *n})
	}
	if t.index != nil {
		t.index[k] = t.count
	}
	t.count++
}

func (t *Tally) at(i int) *part {
	if i == 0 {
		return &t.first
	}
	return &t.others[i-1]
}

// find is the place of a queue, or -1. Runs of one queue are the rule.
func (t *Tally) find(k *Key) int {
	switch {
	case t.count == 0:
		return -1
	case t.at(t.count-1).key == *k:
		return t.count - 1
	case t.count > tallySearch:
		return t.lookUp(k)
	}
	for i := range t.count {
		if t.at(i).key == *k {
			return i
		}
	}
	return -1
}

func (t *Tally) lookUp(k *Key) int {
	if t.index == nil {
		t.index = make(map[Key]int, 2*t.count)
		for i := range t.count {
			t.index[t.at(i).key] = i
		}
	}
	if i, ok := t.index[*k]; ok {
		return i
	}
	return -1
}
