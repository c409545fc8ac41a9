package wire

import "net/http"

// Notify is the body of POST /internal/api/notify.
type Notify struct {
	Queue     string
	Partition string // empty when the lane is not known
}

const (
	bitNotifyQueue = iota
	bitNotifyPartition
)

// ParseNotify reads the body of POST /internal/api/notify.
func ParseNotify(body []byte) (Notify, error) {
	p, err := newParser(body)
	if err != nil {
		return Notify{}, err
	}
	var n Notify
	var seen uint
	err = p.object(func(key []byte) (err error) {
		switch string(key) {
		case KindQueue:
			n.Queue, err = p.member(&seen, bitNotifyQueue, KindQueue, "")
		case KindPartition:
			n.Partition, err = p.member(&seen, bitNotifyPartition, KindPartition, "")
		default:
			err = p.skip()
		}
		return err
	})
	if err != nil {
		return Notify{}, err
	}
	if err := p.finish(); err != nil {
		return Notify{}, err
	}
	if n.Queue == "" {
		return Notify{}, badBody("missing field `queue`: a name is needed")
	}
	return n, nil
}

// ParseEnabled reads the body of POST /api/v1/system/maintenance and of its sibling
// for pops.
func ParseEnabled(body []byte) (enabled bool, err error) {
	p, err := newParser(body)
	if err != nil {
		return false, err
	}
	given := false
	var seen uint
	err = p.object(func(key []byte) error {
		if string(key) != "enabled" {
			return p.skip()
		}
		if err := p.once(&seen, 0, "enabled"); err != nil {
			return err
		}
		switch p.dec.PeekKind() {
		case 't', 'f':
			given = true
			return p.flag(&enabled)
		}
		return p.skip()
	})
	if err == nil {
		err = p.finish()
	}
	if err == nil && !given {
		err = &Error{Status: http.StatusBadRequest, Text: "enabled (boolean) is required"}
	}
	return enabled && err == nil, err
}

// Maintenance are the two flags that hold traffic back.
type Maintenance struct {
	Push bool `json:"maintenance_mode"`
	Pop  bool `json:"pop_maintenance_mode"`
}

// SharedState is the answer of GET /api/v1/system/shared-state, and that of the
// statistics of the pool where there is none.
type SharedState struct {
	Enabled bool   `json:"enabled"`
	Reason  string `json:"reason"`
	Maintenance
}

// The reasons of SharedState.
const (
	ReasonNoPeers    = "no_peers"
	ReasonSingleNode = "single_node_segments_broker"
)

// MeshPeer is one address of a configured peer.
type MeshPeer struct {
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Connected  bool   `json:"connected"`
	Resolved   bool   `json:"resolved"`
	ResolvedIP string `json:"resolved_ip"`
}

// MeshStats is the answer of GET /internal/api/shared-state/stats and its alias.
type MeshStats struct {
	ServerID           string     `json:"server_id"`
	Transport          string     `json:"transport"`
	Port               int        `json:"port"`
	PeerCount          int        `json:"peer_count"`
	Peers              []MeshPeer `json:"peers"`
	ServersAlive       int        `json:"servers_alive"`
	ServersDead        int        `json:"servers_dead"`
	EphemeralMembers   int        `json:"eph_members"`
	MessagesSent       int64      `json:"messages_sent"`
	MessagesReceived   int64      `json:"messages_received"`
	MessagesDropped    int64      `json:"messages_dropped"`
	SignatureFailures  int64      `json:"signature_failures"`
	HandshakeFailures  int64      `json:"handshake_failures"`
	SequenceRejections int64      `json:"sequence_rejections"`
	Enabled            bool       `json:"enabled"`
	Running            bool       `json:"running"`
	Maintenance
}
