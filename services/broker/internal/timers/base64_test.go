package timers_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/timers"
)

// FuzzDecodedSize finds no text that is measured otherwise than Go decodes it, once
// the blanks are gone that PostgreSQL passes over.
func FuzzDecodedSize(f *testing.F) {
	for _, text := range []string{"", "QQ==", "QUI=", "QUJD", "Q Q\t=\r\n=", "QQ=", "QQ=Q", "=", "====", "QUJD====", "QU\vJD", "-_==", "\u00a0"} {
		f.Add(text)
	}
	blanks := strings.NewReplacer(" ", "", "\t", "", "\r", "", "\n", "")
	f.Fuzz(func(t *testing.T, text string) {
		size, ok := timers.DecodedSize([]byte(text))
		decoded, err := base64.StdEncoding.DecodeString(blanks.Replace(text))
		require.Equal(t, err == nil, ok)
		if ok {
			require.Equal(t, len(decoded), size)
		}
	})
}
