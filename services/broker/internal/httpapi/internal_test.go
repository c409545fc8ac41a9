package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNotifyWakes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want("POST", "/internal/api/notify", `{"queue":"a/b"}`, http.StatusOK, `{"status":"ok"}`)
	b.want("POST", "/internal/api/notify", `{"queue":"q","partition":"p"}`, http.StatusOK, `{"status":"ok"}`)
	require.Equal(t, []string{"notify a/b/", "notify q/p"}, b.changed)
	for _, body := range []string{"", "{}", `{"queue":""}`, `{"partition":"p"}`, `{"queue":7}`} {
		res, answer := b.call("POST", "/internal/api/notify", body)
		require.Equal(t, http.StatusBadRequest, res.StatusCode, body)
		require.Contains(t, answer, `{"error":"`, body)
	}
	require.Len(t, b.changed, 2)
}

func TestMeshStatsAndItsAlias(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, path := range []string{"/internal/api/shared-state/stats", "/internal/api/inter-instance/stats"} {
		b.want("GET", path, "", http.StatusOK, `{"some":"stats"}`)
	}
	b.want("GET", "/api/v1/system/shared-state", "", http.StatusOK,
		`{"enabled":false,"reason":"single_node_segments_broker","maintenance_mode":false,"pop_maintenance_mode":false}`)
}
