package wire

import (
	"unicode"
	"unicode/utf8"
)

// Limits of names and bodies.
const (
	MaxQueueNameChars     = 255  // characters, as the column counts
	MaxPartitionBytes     = 1024 // bytes
	MaxGroupBytes         = 1024
	MaxTransactionIDBytes = 1024
	MaxLeaseIDBytes       = 1024
	MaxLabelChars         = 255  // namespace and task
	MaxSubscriptionBytes  = 2048 // group, namespace and task together: they share an index entry
	MaxDepth              = 512  // nesting of a JSON value
	// MaxElements bounds every array of one request, since an element of two
	// bytes becomes a hundred in memory.
	MaxElements = 1_000_000
)

// Fixed names of the wire.
const (
	DefaultPartition = "Default"
	QueueModeGroup   = "__QUEUE_MODE__"
)

// Kinds of names, as CheckName knows them and as errors call them.
const (
	KindQueue         = "queue"
	KindPartition     = "partition"
	KindGroup         = "consumerGroup"
	KindTransactionID = "transactionId"
	KindLease         = "leaseId"
	KindNamespace     = "namespace"
	KindTask          = "task"
)

// CheckName tells whether a name of that kind may be used. The error is an
// *Error that names the kind, what is wrong and what is allowed.
func CheckName(kind, value string) error {
	if fault := nameFault(kind, value); fault != "" {
		return badRequest("%s: %s", kind, fault)
	}
	return nil
}

// nameFault is "" for a good name.
func nameFault(kind, value string) string {
	switch kind {
	case KindQueue, KindNamespace, KindTask:
		if len(value) > MaxQueueNameChars && utf8.RuneCountInString(value) > MaxQueueNameChars {
			return "longer than 255 characters"
		}
	default:
		if len(value) > MaxTransactionIDBytes {
			return "longer than 1024 bytes"
		}
	}
	if isPlain(value) {
		return ""
	}
	if !utf8.ValidString(value) {
		return "not valid UTF-8"
	}
	for _, r := range value {
		if unicode.IsControl(r) {
			return "holds a control character; letters, digits, blanks and punctuation are allowed"
		}
	}
	return ""
}

// isPlain is the quick way out for nearly every name: printable ASCII.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
