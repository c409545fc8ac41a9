// Package segment packs messages into the blobs that queen.log_segments stores,
// and takes them out again. It is the only place that knows the frame layout,
// the compression and the hash of transaction ids.
//
// A blob is one zstd frame (RFC 8878) around a run of message frames, each
// little-endian:
//
//	u32 body_len
//	body:
//	  u8      flags: 1 trace id present, 2 producer sub present, 4 encrypted
//	  u8[16]  message id
//	  u8[16]  trace id            only with flag 1
//	  u16     txn_len, then the transaction id
//	  u16     psub_len, then the producer sub   only with flag 2
//	  ...     payload, to the end of the body
//
// The zstd frame carries its content size and no checksum: PostgreSQL's pages
// have their own, and the size lets SQL bound a reply without decoding. What would
// compress badly stands in it uncompressed.
package segment
