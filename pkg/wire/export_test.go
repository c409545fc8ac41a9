package wire

// For the tests: the two ways to read a push.
var (
	ParsePlainPush = parsePlainPush
	ParseAnyPush   = parsePush
)

// The two ways to read an ack of many.
var (
	ParsePlainAckBatch = parsePlainAckBatch
	ParseAnyAckBatch   = parseAckBatch
)
