package fusion

// Waiting counts the messages that wait for a lane in flight or for a bundle.
func Waiting(f *Fuser) (n int) {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		for _, l := range s.lanes {
			for _, p := range l.waiting {
				n += len(p.Messages)
			}
		}
		s.mu.Unlock()
	}
	return n
}

// Lanes counts the lanes in memory.
func Lanes(f *Fuser) (n int) {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		n += len(s.lanes)
		s.mu.Unlock()
	}
	return n
}

// MaxSplits is maxSplits.
const MaxSplits = maxSplits
