package wire

// For the tests: the two ways to read a push.
var (
	ParsePlainPush = parsePlainPush
	ParseAnyPush   = parsePush
)
