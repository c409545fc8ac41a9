package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// requestTimeout bounds one request; a long poll asks for less.
const (
	requestTimeout = 30 * time.Second
	pollTimeout    = time.Second
)

// brokerLoad talks to the broker as a client would.
type brokerLoad struct {
	load   *workload
	url    string
	client *http.Client
	bufs   [][]byte // one body buffer per pusher
}

func newBrokerLoad(w *workload, url string) *brokerLoad {
	conns := w.opts.Pushers + w.opts.Groups*w.opts.Consumers
	return &brokerLoad{
		load: w, url: url,
		client: &http.Client{
			Timeout:   requestTimeout,
			Transport: &http.Transport{MaxIdleConnsPerHost: conns, DisableCompression: true},
		},
		bufs: make([][]byte, w.opts.Pushers),
	}
}

var queuedMark = []byte(`"status":"queued"`)

// push sends one batch to one lane and checks that all of it was stored.
func (b *brokerLoad) push(ctx context.Context, worker, n int, at time.Time) error {
	t := b.load.bodies[n%len(b.load.bodies)]
	b.bufs[worker] = t.fill(b.bufs[worker], n%b.load.opts.Lanes, at)
	status, text, err := b.call(ctx, http.MethodPost, "/api/v1/push", b.bufs[worker])
	if err != nil {
		return err
	}
	if status != http.StatusCreated || bytes.Count(text, queuedMark) != b.load.opts.Batch {
		return fmt.Errorf("push answered %d: %.200s", status, text)
	}
	return nil
}

func (b *brokerLoad) call(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	res, err := b.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, text, err
}

// delivery is what the consumers of one block saw.
type delivery struct {
	messages atomic.Int64
	failures atomic.Int64
	mu       sync.Mutex
	latency  *hdrhistogram.Histogram // microseconds from due time to arrival
	lastErr  error
}

// consume runs the groups until ctx ends. Every message is acknowledged.
func (b *brokerLoad) consume(ctx context.Context, d *delivery) *sync.WaitGroup {
	var wg sync.WaitGroup
	for g := range b.load.opts.Groups {
		for range b.load.opts.Consumers {
			wg.Go(func() {
				own := newHistogram()
				for ctx.Err() == nil {
					if err := b.consumeOnce(ctx, "group-"+strconv.Itoa(g), d, own); err != nil && ctx.Err() == nil {
						d.fail(err)
					}
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				d.latency.Merge(own)
			})
		}
	}
	return &wg
}

func (d *delivery) fail(err error) {
	d.failures.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastErr = err
}

type poppedMessage struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
	Data          struct {
		Sent int64 `json:"t"`
	} `json:"data"`
}

type acknowledgment struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
}

// consumeOnce is one pop and the ack of everything it returned.
func (b *brokerLoad) consumeOnce(ctx context.Context, group string, d *delivery, h *hdrhistogram.Histogram) error {
	path := fmt.Sprintf("/api/v1/pop/queue/%s?consumerGroup=%s&batch=%d&partitions=%d&wait=true&timeout=%d",
		queueName, group, b.load.opts.PopBatch, b.load.opts.PopLanes, pollTimeout.Milliseconds())
	status, text, err := b.call(ctx, http.MethodGet, path, nil)
	if err != nil || status == http.StatusNoContent {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("pop answered %d: %.200s", status, text)
	}
	arrived := time.Now().UnixMicro()
	var popped struct {
		Messages []poppedMessage `json:"messages"`
	}
	if err := json.Unmarshal(text, &popped); err != nil {
		return err
	}
	acks := make([]acknowledgment, len(popped.Messages))
	for i, m := range popped.Messages {
		_ = h.RecordValue(max(arrived-m.Data.Sent, 1))
		acks[i] = acknowledgment{m.TransactionID, m.PartitionID, m.LeaseID}
	}
	d.messages.Add(int64(len(acks)))
	return b.ackAll(ctx, group, acks)
}

var rejectedMark = []byte(`"success":false`)

func (b *brokerLoad) ackAll(ctx context.Context, group string, acks []acknowledgment) error {
	body, err := json.Marshal(map[string]any{"consumerGroup": group, "acknowledgments": acks})
	if err != nil {
		return err
	}
	status, text, err := b.call(ctx, http.MethodPost, "/api/v1/ack/batch", body)
	if err != nil {
		return err
	}
	if status != http.StatusOK || bytes.Contains(text, rejectedMark) {
		return errors.New("ack answered " + strconv.Itoa(status) + ": " + string(text[:min(len(text), 200)]))
	}
	return nil
}
