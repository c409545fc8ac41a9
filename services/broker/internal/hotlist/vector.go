package hotlist

const pageBits = 9

// vector is a slice in pages: it grows without copying what it holds and without
// much to spare, and a full page stays where it is. The first page starts small,
// since most queues have few lanes.
type vector[T any] struct {
	pages [][]T
	n     int32
	// wide adds bits to the length of a page. The allocator rounds up pages of
	// pointers unless they have 32 KiB.
	wide uint8
}

func (v *vector[T]) bits() uint8 { return pageBits + v.wide }

func (v *vector[T]) at(i int32) *T {
	bits := v.bits()
	return &v.pages[i>>bits][i&(1<<bits-1)]
}

// extend makes the vector hold n elements at least.
func (v *vector[T]) extend(n int32) {
	bits := v.bits()
	full := int32(1) << bits
	for v.n < n {
		last := int(v.n >> bits)
		switch {
		case last == len(v.pages) && last == 0:
			v.pages = append(v.pages, make([]T, min(n, full)))
		case last == len(v.pages):
			v.pages = append(v.pages, make([]T, full))
		case int(v.n) == len(v.pages[last]): // the first page, which is not full
			page := make([]T, min(full, max(2*v.n, n)))
			copy(page, v.pages[last])
			v.pages[last] = page
		}
		v.n = min(n, int32(last)<<bits+int32(len(v.pages[last])))
	}
}
