package pgdb

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Array is an argument that writes itself in the binary form of a one-dimensional
// array: see AppendArray. pgx goes through reflection for every element of a slice,
// and lets the buffer grow from nothing for every statement, which copies the
// blobs of a push several times.
type Array interface {
	// AppendArray appends the array to dst.
	AppendArray(dst []byte) []byte
}

// Types of elements.
const (
	OIDBytea = pgtype.ByteaOID
	OIDText  = pgtype.TextOID
	OIDInt4  = pgtype.Int4OID
	OIDInt8  = pgtype.Int8OID
	OIDUUID  = pgtype.UUIDOID
)

// AppendArrayHead begins an array of n elements. Each is its length as four bytes,
// big-endian, and its binary form; a length of -1 is NULL.
func AppendArrayHead(dst []byte, element uint32, n int) []byte {
	dimensions := uint32(1)
	if n == 0 {
		dimensions = 0
	}
	dst = binary.BigEndian.AppendUint32(dst, dimensions)
	dst = binary.BigEndian.AppendUint32(dst, 1) // there may be NULLs
	dst = binary.BigEndian.AppendUint32(dst, element)
	if n > 0 {
		dst = binary.BigEndian.AppendUint32(dst, uint32(n))
		dst = binary.BigEndian.AppendUint32(dst, 1) // the first index
	}
	return dst
}

// acceptArrays makes a session take Array arguments.
func acceptArrays(conn *pgx.Conn) {
	m := conn.TypeMap()
	for _, oid := range []uint32{
		pgtype.ByteaArrayOID, pgtype.TextArrayOID, pgtype.Int4ArrayOID, pgtype.Int8ArrayOID, pgtype.UUIDArrayOID,
	} {
		t, ok := m.TypeForOID(oid)
		if !ok {
			continue
		}
		if codec, ok := t.Codec.(*pgtype.ArrayCodec); ok {
			m.RegisterType(&pgtype.Type{Name: t.Name, OID: oid, Codec: arrayCodec{codec}})
		}
	}
}

type arrayCodec struct{ *pgtype.ArrayCodec }

// PlanEncode prefers the form that an argument has of its own.
func (c arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(Array); ok && format == pgtype.BinaryFormatCode {
		return arrayPlan{}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

type arrayPlan struct{}

// Encode appends an Array.
func (arrayPlan) Encode(value any, buf []byte) ([]byte, error) {
	return value.(Array).AppendArray(buf), nil
}
