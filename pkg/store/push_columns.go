package store

import (
	"encoding/binary"
	"slices"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/pgdb"
)

// pushColumns are segments as the index-aligned arguments of log_push_multi_v1.
type pushColumns struct {
	segs  []PushSegment
	known bool // lanes are named by their ids where those are known
}

func (c *pushColumns) suspects() (n int) {
	for i := range c.segs {
		n += len(c.segs[i].Suspects)
	}
	return n
}

// columnKind names an argument.
type columnKind uint8

const (
	queueColumn columnKind = iota
	partitionColumn
	countColumn
	hashColumn
	verifiedColumn
	blobColumn
	tenantColumn
	pidColumn
	windowColumn
	suspectSegColumn
	suspectBaseColumn
)

// column is one argument: a pgdb.Array.
type column struct {
	*pushColumns
	kind columnKind
}

// AppendArray implements pgdb.Array.
func (c column) AppendArray(dst []byte) []byte {
	switch c.kind {
	case queueColumn:
		return c.append(dst, pgdb.OIDText, func(dst []byte, s *PushSegment) []byte { return appendElement(dst, s.Queue) })
	case partitionColumn:
		return c.append(dst, pgdb.OIDText, func(dst []byte, s *PushSegment) []byte { return appendElement(dst, s.Partition) })
	case countColumn:
		return c.append(dst, pgdb.OIDInt4, func(dst []byte, s *PushSegment) []byte { return appendInt4(dst, s.Count) })
	case hashColumn:
		return c.append(dst, pgdb.OIDBytea, func(dst []byte, s *PushSegment) []byte { return appendElement(dst, s.Hashes) })
	case verifiedColumn:
		return c.append(dst, pgdb.OIDInt8, func(dst []byte, s *PushSegment) []byte { return appendInt8(dst, s.Verified) })
	case blobColumn:
		return c.append(c.growForAll(dst), pgdb.OIDBytea, func(dst []byte, s *PushSegment) []byte { return appendElement(dst, s.Blob) })
	case tenantColumn:
		return c.append(dst, pgdb.OIDUUID, func(dst []byte, s *PushSegment) []byte { return appendElement(dst, s.Tenant[:]) })
	case pidColumn:
		return c.append(dst, pgdb.OIDUUID, c.appendLane)
	case windowColumn:
		return c.append(dst, pgdb.OIDInt4, func(dst []byte, s *PushSegment) []byte { return appendInt4(dst, s.Window) })
	default:
		return c.appendSuspects(dst)
	}
}

// growForAll makes room for the blobs and for what follows them, since the buffer
// starts small for every statement.
func (c column) growForAll(dst []byte) []byte {
	const perSegment = 64
	total := 0
	for i := range c.segs {
		total += len(c.segs[i].Blob) + perSegment
	}
	return slices.Grow(dst, total+perSegment)
}

func (c column) append(dst []byte, oid uint32, element func(dst []byte, s *PushSegment) []byte) []byte {
	dst = pgdb.AppendArrayHead(dst, oid, len(c.segs))
	for i := range c.segs {
		dst = element(dst, &c.segs[i])
	}
	return dst
}

func (c column) appendLane(dst []byte, s *PushSegment) []byte {
	if !c.known || s.PartitionID == uuid.Nil {
		return appendNull(dst)
	}
	return appendElement(dst, s.PartitionID[:])
}

// appendSuspects writes the positions or the offsets of the suspect rows.
func (c column) appendSuspects(dst []byte) []byte {
	if c.kind == suspectSegColumn {
		dst = pgdb.AppendArrayHead(dst, pgdb.OIDInt4, c.suspects())
	} else {
		dst = pgdb.AppendArrayHead(dst, pgdb.OIDInt8, c.suspects())
	}
	for i := range c.segs {
		for _, base := range c.segs[i].Suspects {
			if c.kind == suspectSegColumn {
				dst = appendInt4(dst, i+1)
			} else {
				dst = appendInt8(dst, base)
			}
		}
	}
	return dst
}

func appendElement[T string | []byte](dst []byte, v T) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(v))), v...)
}

// appendNull writes the length -1.
func appendNull(dst []byte) []byte { return binary.BigEndian.AppendUint32(dst, ^uint32(0)) }

func appendInt4(dst []byte, v int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, 4), uint32(int32(v)))
}

func appendInt8(dst []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(dst, 8), uint64(v))
}
