package store

import (
	"fmt"

	"github.com/google/uuid"
)

// popMeta describes the slices of a pop; their blobs travel beside it, in the
// same order.
type popMeta struct {
	Partitions []struct {
		Partition       string    `json:"partition"`
		PartitionID     uuid.UUID `json:"partitionId"`
		DeliveryAttempt int       `json:"deliveryAttempt"`
		Segments        []struct {
			Seq       int64  `json:"seq"`
			StartOff  int    `json:"startOff"`
			Take      int    `json:"take"`
			Count     int    `json:"msgCount"`
			CreatedAt string `json:"createdAt"`
		} `json:"segments"`
	} `json:"partitions"`
	// SeedAfter is set when a queue has too many partitions to seed in one pop.
	SeedAfter uuid.NullUUID `json:"seedAfter"`
}

// popAnswer is the row of a pop as it is read.
type popAnswer struct {
	name  string // of the call, for errors
	meta  popMeta
	blobs [][]byte
}

// popped puts the blobs to their slices.
func (a popAnswer) popped() ([]Popped, error) {
	popped := make([]Popped, len(a.meta.Partitions))
	n := 0
	for i, p := range a.meta.Partitions {
		out := Popped{
			Partition: p.Partition, PartitionID: p.PartitionID, DeliveryAttempt: max(p.DeliveryAttempt, 1),
			Segments: make([]PoppedSegment, len(p.Segments)),
		}
		for k, s := range p.Segments {
			if n == len(a.blobs) {
				return nil, fmt.Errorf("%s: %w: %d blobs, more are described", a.name, errAnswer, len(a.blobs))
			}
			out.Segments[k] = PoppedSegment{Base: s.Seq, Start: s.StartOff, Take: s.Take, Count: s.Count, CreatedAt: s.CreatedAt, Blob: a.blobs[n]}
			n++
		}
		popped[i] = out
	}
	if n != len(a.blobs) {
		return nil, fmt.Errorf("%s: %w: %d blobs, %d are described", a.name, errAnswer, len(a.blobs), n)
	}
	return popped, nil
}
