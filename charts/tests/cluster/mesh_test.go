package cluster_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// requireOneMesh requires that, soon, every broker sees all brokers and sweepers of its
// release, and nobody else.
func (r *release) requireOneMesh(t *testing.T) {
	t.Helper()
	brokers, sweepers := r.names(t, broker), r.names(t, sweeper)
	what := fmt.Sprintf("%s: %d brokers and %d sweepers tell each other where to look", r.name, len(brokers), len(sweepers))
	r.eventually(t, time.Minute, what, func() string {
		for _, pod := range brokers {
			if lacking := r.lacksPeers(t, pod, len(brokers), len(sweepers)); lacking != "" {
				return lacking
			}
		}
		return ""
	})
}

// lacksPeers answers nothing when a broker sees the others: servers are brokers, peers are
// brokers and sweepers, itself among them.
func (r *release) lacksPeers(t *testing.T, pod string, brokers, sweepers int) string {
	t.Helper()
	text, err := r.ask(t, pod, brokerPort, "/internal/api/shared-state/stats")
	if err != nil {
		return err.Error()
	}
	var stats struct {
		Alive int `json:"servers_alive"`
		Dead  int `json:"servers_dead"`
		Peers []struct{ Connected bool }
	}
	if err := json.Unmarshal([]byte(text), &stats); err != nil {
		return err.Error()
	}
	connected := 0
	for _, p := range stats.Peers {
		if p.Connected {
			connected++
		}
	}
	if stats.Alive != brokers-1 || stats.Dead != 0 || connected != brokers+sweepers || len(stats.Peers) != connected {
		return text
	}
	return ""
}
