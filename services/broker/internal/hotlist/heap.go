package hotlist

// visit is a lane that is to be looked at when it is due.
type visit struct {
	due  int64
	lane int32
}

// heap has the earliest visit at its root. container/heap would allocate for
// every one.
type heap []visit

func (h *heap) push(v visit) {
	*h = append(*h, v)
	q := *h
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if q[up].due <= v.due {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = v
}

func (h *heap) pop() visit {
	q := *h
	root, last := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	if len(q) > 0 {
		q.sink(0, last)
	}
	*h = q
	if cap(q) > 1024 && len(q) < cap(q)/4 {
		*h = append(make(heap, 0, cap(q)/2), q...) // a burst is not remembered
	}
	return root
}

// sink puts v at i or below.
func (h heap) sink(i int, v visit) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].due < h[child].due {
			child++
		}
		if h[child].due >= v.due {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = v
}

// prune drops what is no longer meant.
func (h *heap) prune(keep func(visit) bool) {
	q := (*h)[:0]
	for _, v := range *h {
		if keep(v) {
			q = append(q, v)
		}
	}
	for i := len(q)/2 - 1; i >= 0; i-- {
		q.sink(i, q[i])
	}
	*h = q
}
