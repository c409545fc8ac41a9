package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// QueueModeGroup is the consumer group of consumers that name none.
const QueueModeGroup = "__QUEUE_MODE__"

// DefaultPartition is the partition of messages that name none.
const DefaultPartition = "Default"

// DefaultTenant returns the tenant of every caller while tenancy is off.
func DefaultTenant() uuid.UUID { return uuid.UUID{15: 1} }

// Values of PushSegment.Verified that are no mark.
const (
	// VerifiedNone makes no statement: the probe reads the whole window.
	VerifiedNone int64 = -1
	// VerifiedMinted says that every transaction id was minted for this
	// request, so no stored row can match and the probe is skipped. Only the
	// first submission of a segment may say so (design rule 5).
	VerifiedMinted int64 = -2
)

// PushSegment is one packed segment on its way into one partition.
type PushSegment struct {
	Tenant    uuid.UUID
	Queue     string
	Partition string
	Count     int    // frames in Blob, at least 1
	Hashes    []byte // 16 bytes per frame, in frame order
	Blob      []byte // packed and compressed frames
	// Verified is the highest offset known to hold none of Hashes outside the rows
	// of Suspects, or one of the Verified constants. It counts only together with
	// PartitionID.
	Verified int64
	// PartitionID is the partition as far as the caller knows it, uuid.Nil when it
	// does not: the one the mark was built for. Names need not be resolved when all
	// segments of a call carry the right one.
	PartitionID uuid.UUID
	Window      int // dedup window, in seconds, the mark was built for
	// Suspects are the base offsets of sidecar rows at or below Verified that may
	// hold one of Hashes; the database reads them.
	Suspects []int64
}

// PushStatus is the verdict of the database on one segment.
type PushStatus string

// The verdicts of a push.
const (
	PushQueued    PushStatus = "queued"
	PushDuplicate PushStatus = "duplicate"
	// PushBusy says that another transaction held the lane (SkipLocked only).
	PushBusy PushStatus = "busy"
)

// PushVerdict answers one PushSegment, at the same position.
type PushVerdict struct {
	Status      PushStatus
	PartitionID uuid.UUID
	BaseOffset  int64     // queued: offset of frame 0
	CreatedAt   time.Time // queued: commit-order stamp of the segment
	Dups        []Dup     // duplicate: ascending by Index; nothing was written
}

// Dup names one frame of a segment that the window already holds.
type Dup struct {
	Index  int   // frame index in the submitted segment
	Offset int64 // offset of the stored original
}

// Segment is one stored segment.
type Segment struct {
	Base, End int64 // inclusive offsets
	CreatedAt time.Time
	Blob      []byte
}

// Pop carries the arguments common to every pop.
type Pop struct {
	Tenant        uuid.UUID
	Group         string // QueueModeGroup for none
	Budget        int    // messages, over all partitions
	LeaseSeconds  int    // <= 0: the queue's own lease time
	Worker        string // becomes the lease id
	AutoAck       bool
	MaxPartitions int    // <= 0: no limit; ignored by PopSpecific
	SubMode       string // "all" or "new"; first contact only
	SubFrom       string // "", "now" or a timestamp; first contact only
	MaxBytes      int64  // decoded bytes claimed at most, at least one message; <= 0: the database default of 16 MiB
	// Known are segments that the caller holds: their blobs are left out of the
	// answer. PopWildcard and PopDiscover do not look at them.
	Known []KnownSegment
}

// KnownSegment names one stored segment and its content: a partition id is never
// used again, and a base offset only by a database that lost what it had stored,
// which the creation time tells.
type KnownSegment struct {
	PartitionID uuid.UUID
	Base        int64
	CreatedAt   string // as PoppedSegment has it
}

// Popped is what one pop claimed from one partition.
type Popped struct {
	Partition       string
	PartitionID     uuid.UUID
	DeliveryAttempt int // 1 on first delivery and under AutoAck
	Segments        []PoppedSegment
}

// Messages is how many messages there are in the segments.
func (p *Popped) Messages() (n int) {
	for i := range p.Segments {
		n += p.Segments[i].Take
	}
	return n
}

// PoppedSegment is a slice of one stored segment.
type PoppedSegment struct {
	Base      int64  // offset of frame 0 of the segment
	Start     int    // first frame to deliver
	Take      int    // frames to deliver
	Count     int    // frames in the whole segment
	CreatedAt string // UTC, microseconds, trailing Z, as the wire shows it
	Blob      []byte // nil when it is one of Pop.Known
}

// The states of a candidate.
const (
	StateTook   = "took"
	StateEmpty  = "empty"
	StateLeased = "leased" // by somebody else, or not visible yet
)

// CandidateState is the verdict of PopList on one candidate.
type CandidateState struct {
	Partition  string
	State      string    // StateTook, StateEmpty or StateLeased
	Until      time.Time // leased only
	LastOffset int64     // took only
	// Locked, on a leased one: no lease is known, another transaction merely held
	// the row. Worth another try well before Until.
	Locked bool
}

// PopListResult is the answer of PopList.
type PopListResult struct {
	Claimed []Popped
	States  []CandidateState
	// Unseeded tells that the group has no record for the queue: the caller owes
	// a PopWildcard, which registers it.
	Unseeded bool
}

// LaneGroup is a consumer group of one partition, by names.
type LaneGroup struct {
	Tenant                  uuid.UUID
	Queue, Partition, Group string
}

// PartitionRef names a partition by id and by name.
type PartitionRef struct {
	ID   uuid.UUID
	Name string
}

// AckStatus is the normalised status of one acknowledged message.
type AckStatus string

// The statuses the ack procedure understands.
const (
	AckCompleted AckStatus = "completed"
	AckFailed    AckStatus = "failed"
	AckRetry     AckStatus = "retry"
	AckDLQ       AckStatus = "dlq"
)

// AckOutcome is the verdict on one group of acknowledgements of one
// (partition, group). Error is a wire text; OK is false exactly when it is set.
type AckOutcome struct {
	OK       bool
	Error    string
	Acked    int64 // offsets the cursor moved over
	Offset   int64 // new cursor; with DLQ set, the offset of the poison message
	Released bool  // the lease ended with this call
	Dropped  bool  // the head message was dropped: budget spent, dead-lettering off
	DLQ      bool  // the caller must complete the hand-off with DLQHead
	Worker   string
	// Positions (in the submitted hashes) that could not act.
	Noop       []int
	Stale      []int
	Unresolved []int
}

// AckBusy is the error of a row that AckWhole did not wait for.
const AckBusy = "busy"

// CursorKey names one cursor.
type CursorKey struct {
	PartitionID uuid.UUID
	Group       string
}

// DeadLetter is the snapshot of one poison message.
type DeadLetter struct {
	PartitionID   uuid.UUID
	Group         string
	Worker        string // lease holder; "" skips the lease check
	Offset        int64
	MessageID     uuid.UUID
	TransactionID string
	Payload       []byte // JSON as the client sent it; what jsonb refuses is stored as {"$raw": base64}
	Error         string
}

// TxPush is one packed segment inside a transaction.
type TxPush struct {
	Queue     string
	Partition string
	Count     int
	Hashes    []byte
	Blob      []byte
	// Verified, PartitionID and Window are the mark, as in PushSegment. Without a
	// partition id only VerifiedMinted says anything.
	Verified    int64
	PartitionID uuid.UUID
	Window      int
}

// TxAck is one group of acknowledgements inside a transaction.
type TxAck struct {
	PartitionID uuid.UUID
	Group       string
	// Worker is the lease to check; "" skips the check.
	Worker string
	// Workers, when not empty: the row's live holder must be one of them.
	Workers  []string
	Hashes   [][16]byte
	Statuses []AckStatus
	// Whole says that the hashes, all completed, are exactly the leased batch that
	// ends at End: the cursor is moved there without a search for them.
	Whole bool
	End   int64
}

// Transaction is an atomic bundle of pushes and acks, and of riders: operations on
// keys and timers, as JSON arrays in the form of KVApply and TimersApply. They run
// before the rest, keys before timers, with lower limits on keys and no getPrefix.
type Transaction struct {
	Tenant      uuid.UUID
	Pushes      []TxPush
	Acks        []TxAck
	KV          json.RawMessage // none or an array
	Timers      json.RawMessage // none or an array
	ProducerSub string          // who schedules the timers, "" for nobody
}

// TransactionResult is the outcome of a committed transaction. Acks is aligned with
// Transaction.Acks, and so are the results of the riders.
type TransactionResult struct {
	Pushes []PushVerdict
	Acks   []AckOutcome
	KV     RawJSON // an array, or nothing without such a rider
	Timers TimersApplied
}

// QueueSettings is the part of a queue's configuration that the broker acts on.
type QueueSettings struct {
	ID                uuid.UUID
	DedupWindow       int // seconds, 0 = off
	EncryptionEnabled bool
	MinPopWaitMillis  int
	WindowBuffer      int
	DelayedProcessing int
	LeaseTime         int
}

// RawJSON is a procedure's answer that the wire passes through unchanged.
type RawJSON = json.RawMessage
