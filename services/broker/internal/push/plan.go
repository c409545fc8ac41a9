package push

import (
	"encoding/hex"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/wire"
)

// leader marks an item that is stored itself.
const leader = -1

// request is the state of one push request. One goroutine owns it.
type request struct {
	*Service
	tenant  uuid.UUID
	sub     string
	items   []wire.PushItem
	results []wire.PushResult
	follows []int32 // index of the first item with the same id in the same lane, or leader
	groups  []group
	broken  bool // the database failed some of it
}

// group is the part of a request that goes to one lane.
type group struct {
	queue, partition string
	items            []int32 // that are stored themselves, in request order
	minted           bool    // every transaction id was minted for this request
}

type laneKey struct{ queue, partition string }

type idKey struct {
	group int32
	id    string
}

// plan mints ids, finds repeats within the request and sorts the rest by lane,
// keeping request order within a lane.
func (s *Service) plan(tenant uuid.UUID, sub string, items []wire.PushItem) (*request, error) {
	r := &request{
		Service: s, tenant: tenant, sub: sub, items: items,
		results: make([]wire.PushResult, len(items)),
		follows: make([]int32, len(items)),
	}
	if err := r.mint(); err != nil {
		return nil, err
	}
	r.assign(r.lanes())
	return r, nil
}

// mint gives every item its message id, and its transaction id where the client
// named none. The texts share one string: one allocation instead of one each.
func (r *request) mint() error {
	ids := make([]uuid.UUID, len(r.items))
	if err := r.IDs.Fill(ids); err != nil {
		return err
	}
	minted := 0
	for i := range r.items {
		if r.items[i].TransactionID == "" {
			minted++
		}
	}
	text := make([]byte, 0, minted*uuidText)
	for i := range r.items {
		if r.items[i].TransactionID == "" {
			text = appendUUID(text, ids[i])
		}
	}
	texts := string(text)
	for i := range r.items {
		it := &r.items[i]
		res := &r.results[i]
		res.Index, res.MessageID, res.QueueName, res.TransactionID = i, ids[i], it.Queue, it.TransactionID
		if it.TransactionID == "" {
			res.TransactionID, texts = texts[:uuidText], texts[uuidText:]
		}
	}
	return nil
}

// lanes numbers the lanes of the request in order of appearance, creates a group
// for each, and returns the lane number of every item.
func (r *request) lanes() []int32 {
	laneOf := make([]int32, len(r.items))
	var byName map[laneKey]int32
	last := int32(-1)
	for i := range r.items {
		it := &r.items[i]
		if last >= 0 && r.groups[last].queue == it.Queue && r.groups[last].partition == it.Partition {
			laneOf[i] = last // runs of one lane are the rule
			continue
		}
		key := laneKey{it.Queue, it.Partition}
		n, ok := byName[key]
		if !ok {
			switch n = int32(len(r.groups)); n {
			case 0: // most requests have one lane
				r.groups = make([]group, 0, 1)
			case 1:
				byName = map[laneKey]int32{{r.groups[0].queue, r.groups[0].partition}: 0}
			}
			if byName != nil {
				byName[key] = n
			}
			r.groups = append(r.groups, group{queue: it.Queue, partition: it.Partition, minted: true})
		}
		laneOf[i], last = n, n
	}
	return laneOf
}

// assign hands every first item of its id to its group; a repeat follows it.
func (r *request) assign(laneOf []int32) {
	var seen map[idKey]int32
	sizes := make([]int32, len(r.groups))
	for i := range r.items {
		r.follows[i] = leader
		lane := laneOf[i]
		if id := r.items[i].TransactionID; id != "" {
			r.groups[lane].minted = false
			first, repeated := seen[idKey{lane, id}]
			if repeated {
				r.follows[i] = first
				continue
			}
			if len(r.items) > 1 {
				if seen == nil {
					seen = make(map[idKey]int32, len(r.items))
				}
				seen[idKey{lane, id}] = int32(i)
			}
		}
		sizes[lane]++
	}
	backing := make([]int32, 0, len(r.items))
	for g := range r.groups {
		end := len(backing) + int(sizes[g])
		r.groups[g].items = backing[len(backing):len(backing):end]
		backing = backing[:end]
	}
	for i := range r.items {
		if r.follows[i] == leader {
			g := &r.groups[laneOf[i]]
			g.items = append(g.items, int32(i))
		}
	}
}

// settleFollowers gives repeats within the request the fate of their leader.
func (r *request) settleFollowers() {
	for i, first := range r.follows {
		if first == leader {
			continue
		}
		res, from := &r.results[i], &r.results[first]
		res.MessageID, res.Status, res.Error = from.MessageID, from.Status, from.Error
		if from.Status == wire.StatusQueued {
			res.Status = wire.StatusDuplicate
		}
	}
}

const uuidText = 36

// appendUUID appends the canonical text of an id.
func appendUUID(dst []byte, id uuid.UUID) []byte {
	for i, part := range [][]byte{id[0:4], id[4:6], id[6:8], id[8:10], id[10:16]} {
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, part)
	}
	return dst
}
