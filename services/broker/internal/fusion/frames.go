package fusion

import (
	"sync"

	"github.com/queenmq/queen/pkg/segment"
)

// pooledFrames is the largest slice kept for reuse; a few huge requests must
// not pin their size for ever.
const pooledFrames = 4096

// framePool recycles the frame lists of packing: about 120 bytes a message.
type framePool struct{ pool sync.Pool }

func (p *framePool) get(n int) *[]segment.Frame {
	if f, ok := p.pool.Get().(*[]segment.Frame); ok && cap(*f) >= n {
		return f
	}
	f := make([]segment.Frame, 0, n)
	return &f
}

// put takes a list back, without the payloads it refers to.
func (p *framePool) put(f *[]segment.Frame) {
	if cap(*f) > pooledFrames {
		return
	}
	clear(*f)
	*f = (*f)[:0]
	p.pool.Put(f)
}
