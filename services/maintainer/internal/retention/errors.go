package retention

import "errors"

// ErrNotLeader says that another replica holds the lock: the cycle was skipped.
var ErrNotLeader = errors.New("another replica holds the retention lock (737001)")
