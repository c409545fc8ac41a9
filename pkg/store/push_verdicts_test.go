package store

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestVerdictsAreReadInEveryForm(t *testing.T) {
	t.Parallel()
	const queued = `{"status": "queued", "createdAt": "2026-11-30T11:12:13.000456Z", "baseOffset": 17, "partitionId": "0199aa10-1111-7abc-8def-000000000001"}`
	id := uuid.MustParse("0199aa10-1111-7abc-8def-000000000001")
	want := PushVerdict{
		Status: PushQueued, PartitionID: id, BaseOffset: 17, CreatedAt: time.Date(2026, 11, 30, 11, 12, 13, 456000, time.UTC),
	}
	for _, text := range []string{"[" + queued + ", " + queued + "]", strings.ReplaceAll("["+queued+","+queued+"]", `": `, `":`)} {
		got, err := parseVerdicts([]byte(text), 2)
		require.NoError(t, err)
		require.Equal(t, []PushVerdict{want, want}, got)
	}
	_, fast := parseQueued([]byte("["+queued+", "+queued+"]"), 2)
	require.True(t, fast)

	got, err := parseVerdicts([]byte(`[`+queued+`, {"dups": [{"i": 3, "off": 9}], "status": "duplicate", "partitionId": "`+id.String()+`"}]`), 2)
	require.NoError(t, err)
	require.Equal(t, []PushVerdict{want, {Status: PushDuplicate, PartitionID: id, Dups: []Dup{{Index: 3, Offset: 9}}}}, got)

	for _, bad := range []string{
		"", "[]", "[" + queued + "]", "[" + queued + ", " + queued + ", " + queued + "]", "[" + queued + ", " + queued,
		"[" + queued + ", " + queued + "] x", strings.Replace("["+queued+", "+queued+"]", "17", "1.5", 1),
		strings.Replace("["+queued+", "+queued+"]", "2026-", "26-", 1), strings.Replace("["+queued+", "+queued+"]", "0199", "01", 1),
	} {
		_, err := parseVerdicts([]byte(bad), 2)
		require.Error(t, err, bad)
	}
}
