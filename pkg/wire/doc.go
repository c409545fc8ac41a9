// Package wire is the broker's HTTP vocabulary: requests parsed from bytes, and
// responses rendered to bytes. It decides what a well-formed request is; it
// knows nothing of HTTP servers, engines or databases.
//
// What is decided here about JSON:
//
//   - A body is one JSON object in UTF-8 without a byte order mark, with
//     nothing after it. Invalid UTF-8 anywhere is refused.
//   - A payload is any JSON value. Its bytes are kept exactly as sent, from its
//     first to its last byte; blanks around it are not part of it. Repeated
//     keys, numbers of any size and unpaired surrogate escapes inside it are
//     the sender's business and survive unchanged.
//   - Payload slices alias the body: the caller keeps the body alive and
//     unchanged for as long as it uses them.
//   - A value nested deeper than MaxDepth is refused, known or not, and so is an
//     array of more than MaxElements items, acknowledgements or operations.
//   - The riders of a transaction, its arrays kv and timers, are passed on as they
//     stand: what an operation on a key or a timer says is for others to read. Their
//     results come after those of the operations; see AppendTxResponse.
//   - A known key given twice in an envelope or an item is refused; unknown
//     keys are ignored, also those that only another kind of operation knows.
//     Keys are compared after their escapes are read, and with their case.
//     null means "not given", except for a payload; so does an empty partition,
//     transaction id or group.
//   - Names (queue, partition, group, transaction id, lease id) are limited in
//     length and hold no control characters and no unpaired surrogates; see
//     CheckName. A push needs a queue name, while a configuration takes the empty
//     one. Prose (the reason of an acknowledgement) is never refused: what
//     PostgreSQL cannot hold is replaced.
//
// And about queries: a value that is not of its parameter's type is refused, the
// first of a repeated parameter counts, and times that cannot be read are passed
// on, because a subscription does not fail over them.
//
// Every refusal is an *Error that names the place, the fault and what is allowed.
package wire
