package store

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSnapshotsInTheMarkedFormRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		form := rawForm(payload)
		require.True(t, json.Valid(form))
		require.True(t, isRawForm(form))
		require.Equal(t, string(payload), string(DecodeSnapshot(form)))
	})
}

func TestAsJSONIsAlwaysJSON(t *testing.T) {
	t.Parallel()
	for _, valid := range []string{`null`, ` {"a": 1, "a": 2} `, `"\ud800"`, `1e400`} {
		require.Equal(t, valid, string(AsJSON([]byte(valid))))
	}
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		out := AsJSON(payload)
		require.True(t, json.Valid(out))
		if !json.Valid(payload) {
			require.Equal(t, string(payload), string(DecodeSnapshot(out)))
		}
	})
}

func TestSnapshotsThatAreNotMarkedStayAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, s := range []string{`null`, `[]`, `{}`, `"$raw"`, `{"a":1}`, `{"$raw":"aGk=","a":1}`, `{"$raw":5}`, `{"$raw":"*"}`, `{"$raw"`, ``} {
		require.Equal(t, s, string(DecodeSnapshot([]byte(s))))
	}
}

// What encoding/json writes never contains what is looked for, so it always fits.
func TestWellFormedJSONFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[^\x00]*`).Draw(t, "text")
		payload, err := json.Marshal(map[string]any{text: text, "n": rapid.Int64().Draw(t, "n"), "b": []any{true, false, nil}})
		require.NoError(t, err)
		require.True(t, fitsJSONB(payload), "%s", payload)
	})
}
