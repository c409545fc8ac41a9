package wire_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestParseNotify(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]wire.Notify{
		`{"queue":"q"}`: {Queue: "q"},
		`{"queue":"q","partition":"p","tenant":["x"]}`:     {Queue: "q", Partition: "p"},
		`{"partition":null,"queue":"a/b"}`:                 {Queue: "a/b"},
		`{"queue":"` + strings.Repeat("q", 255) + `"}`:     {Queue: strings.Repeat("q", 255)},
		`{"queue":"q","partition":"","comment":{"a":[1]}}`: {Queue: "q"},
	} {
		got, err := wire.ParseNotify([]byte(body))
		require.NoError(t, err, body)
		require.Equal(t, want, got, body)
	}
	for _, body := range []string{
		``, `[]`, `{}`, `{"queue":""}`, `{"queue":null}`, `{"queue":1}`, `{"queue":"q","queue":"r"}`, `{"queue":"q"`,
		`{"queue":"q\u0000"}`, `{"queue":"` + strings.Repeat("q", 256) + `"}`, `{"queue":"q","partition":1}`,
	} {
		_, err := wire.ParseNotify([]byte(body))
		var we *wire.Error
		require.ErrorAs(t, err, &we, body)
		require.Equal(t, 400, we.Status, body)
	}
}

func TestMeshAnswersHaveTheNamesThatReadersKnow(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		`{"enabled":false,"reason":"no_peers","maintenance_mode":false,"pop_maintenance_mode":true}`: wire.SharedState{
			Reason: wire.ReasonNoPeers, Maintenance: wire.Maintenance{Pop: true},
		},
		`{"server_id":"a","transport":"tcp-mesh","port":1,"peer_count":1,` +
			`"peers":[{"host":"h","port":2,"connected":true,"resolved":true,"resolved_ip":"::1"}],` +
			`"servers_alive":3,"servers_dead":4,"eph_members":0,"messages_sent":5,"messages_received":6,"messages_dropped":7,` +
			`"signature_failures":8,"handshake_failures":8,"sequence_rejections":0,"enabled":true,"running":true,` +
			`"maintenance_mode":true,"pop_maintenance_mode":false}`: wire.MeshStats{
			ServerID: "a", Transport: "tcp-mesh", Port: 1, PeerCount: 1,
			Peers:        []wire.MeshPeer{{Host: "h", Port: 2, Connected: true, Resolved: true, ResolvedIP: "::1"}},
			ServersAlive: 3, ServersDead: 4, MessagesSent: 5, MessagesReceived: 6, MessagesDropped: 7,
			SignatureFailures: 8, HandshakeFailures: 8, Enabled: true, Running: true, Maintenance: wire.Maintenance{Push: true},
		},
	} {
		got, err := json.Marshal(value)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}
