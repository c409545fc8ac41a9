package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/segment"
)

const (
	queueName = "bench"
	// distinctBodies is how many request bodies are made in advance, so that
	// making load costs the driver little and repeats do not help compression.
	distinctBodies = 64
	// timeDigits holds a send time in microseconds, patched in place.
	timeDigits = 16
	idDigits   = 36
	minPayload = 64
)

// workload holds request bodies made before the clock starts.
type workload struct {
	opts   options
	bodies []template
	blobs  [][]byte // the same messages packed as one segment each, for the floors
	hashes [][]byte
}

// template is a push body whose variable fields sit at known places.
type template struct {
	text  []byte
	lane  int   // offset of the lane number
	times []int // offsets of the send times
	ids   []int // offsets of the transaction ids; empty without client ids
}

func newWorkload(o options) (*workload, error) {
	packer, err := segment.NewPacker(3)
	if err != nil {
		return nil, err
	}
	w := &workload{opts: o}
	for range distinctBodies {
		payloads := make([][]byte, o.Batch)
		for i := range payloads {
			if payloads[i], err = newPayload(o.Bytes); err != nil {
				return nil, err
			}
		}
		w.bodies = append(w.bodies, newTemplate(payloads, o.ClientIDs))
		blob, hashes, err := packPayloads(packer, payloads)
		if err != nil {
			return nil, err
		}
		w.blobs, w.hashes = append(w.blobs, blob), append(w.hashes, hashes)
	}
	return w, nil
}

// newPayload makes a JSON object of exactly size bytes: a send time and random text.
func newPayload(size int) ([]byte, error) {
	frame := fmt.Sprintf(`{"t":%s,"d":""}`, zeros(timeDigits))
	raw := make([]byte, size)
	if _, err := rand.Read(raw); err != nil {
		return nil, err
	}
	text := base64.RawURLEncoding.EncodeToString(raw)[:size-len(frame)]
	return []byte(frame[:len(frame)-2] + text + `"}`), nil
}

func zeros(n int) string { return "1" + string(bytes.Repeat([]byte{'0'}, n-1)) }

func newTemplate(payloads [][]byte, clientIDs bool) template {
	var t template
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i, p := range payloads {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"queue":"` + queueName + `","partition":"lane-`)
		if i == 0 {
			t.lane = b.Len()
		}
		b.WriteString(laneName(0) + `",`)
		if clientIDs {
			b.WriteString(`"transactionId":"`)
			t.ids = append(t.ids, b.Len())
			b.WriteString(uuid.Nil.String() + `",`)
		}
		b.WriteString(`"payload":`)
		t.times = append(t.times, b.Len()+len(`{"t":`))
		b.Write(p)
		b.WriteByte('}')
	}
	b.WriteString(`]}`)
	t.text = b.Bytes()
	return t
}

// laneName has a fixed width so that it can be patched in place.
func laneName(i int) string { return fmt.Sprintf("%07d", i) }

// fill copies the body into dst and patches lane, times and ids.
func (t template) fill(dst []byte, lane int, sent time.Time) []byte {
	dst = append(dst[:0], t.text...)
	name, stamp := laneName(lane), strconv.FormatInt(sent.UnixMicro(), 10)
	stride := 0
	if len(t.times) > 1 {
		stride = t.times[1] - t.times[0]
	}
	for i, at := range t.times {
		copy(dst[t.lane+i*stride:], name)
		copy(dst[at:at+timeDigits], stamp)
	}
	for _, at := range t.ids {
		id := uuid.New()
		copy(dst[at:at+idDigits], id.String())
	}
	return dst
}

// packPayloads makes the segment the broker would store for these payloads.
func packPayloads(p *segment.Packer, payloads [][]byte) (blob, hashes []byte, err error) {
	frames := make([]segment.Frame, len(payloads))
	for i, payload := range payloads {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, nil, err
		}
		frames[i] = segment.Frame{MessageID: id, TransactionID: id.String(), Payload: payload}
	}
	return p.Pack(frames)
}
