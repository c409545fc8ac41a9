package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/segment"
)

const (
	// distinctBodies is how many request bodies are made in advance, so that
	// making load costs the driver little and repeats do not help compression.
	distinctBodies = 64
	// timeDigits holds a time in microseconds, patched in place.
	timeDigits = 16
	idDigits   = 32
	laneDigits = 7
	maxLanes   = 10_000_000
	minPayload = 64

	payloadBytes = 256 // of a message in every row of the table
	zstdLevel    = 3   // the broker's default
)

// shape is what push requests look like.
type shape struct {
	Queue     string
	Batch     int // messages per request
	Bytes     int // per payload; 0 means payloadBytes
	Lanes     int
	Stride    int  // numbers between two lanes; 0 means 1
	Spread    bool // every message of a request goes to a lane of its own, in order
	Random    bool // with Spread: to a random lane
	ClientIDs bool // every message has a transactionId
	Repeat    int  // the transactionIds come again after so many requests; 0: never
}

// workload holds push requests made before the clock starts.
type workload struct {
	shape    shape
	requests []template
	payloads [][][]byte
}

// template is a push request whose variable fields sit at known places.
type template struct {
	text  []byte
	lanes []int // offsets of the lane numbers
	times []int // offsets of the send times
	ids   []int // offsets of the transaction ids; empty without client ids
}

func newWorkload(s shape) (*workload, error) {
	if s.Bytes == 0 {
		s.Bytes = payloadBytes
	}
	w := &workload{shape: s}
	for range distinctBodies {
		payloads := make([][]byte, s.Batch)
		for i := range payloads {
			var err error
			if payloads[i], err = newPayload(s.Bytes); err != nil {
				return nil, err
			}
		}
		w.requests = append(w.requests, newTemplate(s, payloads))
		w.payloads = append(w.payloads, payloads)
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

func newTemplate(s shape, payloads [][]byte) template {
	var t template
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i, p := range payloads {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"queue":"` + s.Queue + `","partition":"` + lanePrefix)
		t.lanes = append(t.lanes, b.Len())
		b.WriteString(string(appendLane(nil, 0)) + `",`)
		if s.ClientIDs {
			b.WriteString(`"transactionId":"`)
			t.ids = append(t.ids, b.Len())
			b.WriteString(zeros(idDigits) + `",`)
		}
		b.WriteString(`"payload":`)
		t.times = append(t.times, b.Len()+len(`{"t":`))
		b.Write(p)
		b.WriteByte('}')
	}
	b.WriteString(`]}`)
	t.text = appendHead(nil, http.MethodPost, "/api/v1/push", b.Len())
	for _, offsets := range [][]int{t.lanes, t.times, t.ids} {
		for i := range offsets {
			offsets[i] += len(t.text)
		}
	}
	t.text = append(t.text, b.Bytes()...)
	return t
}

const lanePrefix = "lane-"

// appendLane has a fixed width so that it can be patched in place.
func appendLane(dst []byte, lane int) []byte {
	at := len(dst)
	dst = append(dst, "0000000"...)
	for i := at + laneDigits - 1; lane > 0; i-- {
		dst[i] = byte('0' + lane%10)
		lane /= 10
	}
	return dst
}

func laneName(lane int) string { return lanePrefix + string(appendLane(nil, lane)) }

// fill copies the n-th request into dst and patches lanes, times and ids.
func (w *workload) fill(dst []byte, n int, rng *mathrand.Rand, sent time.Time) []byte {
	t := &w.requests[n%len(w.requests)]
	dst = append(dst[:0], t.text...)
	var buf [timeDigits]byte
	stamp := strconv.AppendInt(buf[:0], sent.UnixMicro(), 10)
	for i, at := range t.times {
		copy(dst[at:at+timeDigits], stamp)
		appendLane(dst[:t.lanes[i]], w.shape.lane(n, i, rng))
	}
	w.shape.fillIDs(dst, t.ids, n, rng)
	return dst
}

// lane is where the i-th message of the n-th request goes.
func (s shape) lane(n, i int, rng *mathrand.Rand) int {
	lane := n % s.Lanes
	switch {
	case s.Random:
		lane = rng.IntN(s.Lanes)
	case s.Spread:
		lane = (n*s.Batch + i) % s.Lanes
	}
	return lane * max(s.Stride, 1)
}

func (s shape) fillIDs(dst []byte, at []int, n int, rng *mathrand.Rand) {
	if len(at) == 0 {
		return
	}
	if s.Repeat > 0 {
		rng = newRand(n % s.Repeat)
	}
	const hex = "0123456789abcdef"
	for _, a := range at {
		for half := range 2 {
			v := rng.Uint64()
			for i := range idDigits / 2 {
				dst[a+half*idDigits/2+i] = hex[v&15]
				v >>= 4
			}
		}
	}
}

// newRand is a cheap source of numbers; equal seeds give equal numbers.
func newRand(seed int) *mathrand.Rand {
	return mathrand.New(mathrand.NewPCG(uint64(seed), 0x9e3779b97f4a7c15)) //nolint:gosec // not a secret
}

// packed are the segments that the broker would store for the requests.
type packed struct {
	blobs, hashes [][]byte
}

func (w *workload) pack() (packed, error) {
	var p packed
	packer, err := segment.NewPacker(zstdLevel)
	if err != nil {
		return p, err
	}
	for _, payloads := range w.payloads {
		blob, hashes, err := packPayloads(packer, payloads)
		if err != nil {
			return p, err
		}
		p.blobs, p.hashes = append(p.blobs, blob), append(p.hashes, hashes)
	}
	return p, nil
}

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
