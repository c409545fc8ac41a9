package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

// requirePlainAckIsEqual holds the short way, where it is taken, to the parser.
func requirePlainAckIsEqual(t *testing.T, body []byte) (taken bool) {
	t.Helper()
	req, taken := wire.ParsePlainAckBatch(body)
	if taken {
		want, err := wire.ParseAnyAckBatch(body)
		require.NoError(t, err, "%s", body)
		require.Equal(t, want, req, "%s", body)
	}
	return taken
}

func TestPlainAcksAreReadAsTheParserReadsThem(t *testing.T) {
	t.Parallel()
	for body, plain := range map[string]bool{
		`{"acknowledgments":[]}`:                     true,
		` { "acknowledgments" : [ ] , "more" : 1 } `: true,
		`{"consumerGroup":"g","acknowledgments":[{"transactionId":"a","partitionId":"p","leaseId":"l"},{"transactionId":"b","partitionId":"p","leaseId":"l"}]}`:          true,
		`{"acknowledgments":[{"transactionId":"a","status":"failed","error":"é"},{"status":null,"error":null,"leaseId":null,"transactionId":null}],"consumerGroup":"g"}`: true,
		`{"acknowledgments":[{"transactionId":"a","status":""},{"status":"ok","x":{"y":[1]},"consumerGroup":"own","partitionId":null}]}`:                                 true,
		`{"acknowledgments":[{"transactionId":""}]}`:                           true,
		`{"acknowledgments":[{}]}`:                                             false,
		`{"acknowledgments":[{"transactionId":"a","transactionId":"a"}]}`:      false,
		`{"acknowledgments":[{"error":"a","error":null}]}`:                     false,
		`{"acknowledgments":[{"transactionId":"\u0061"}]}`:                     false,
		`{"acknowledgments":[{"transactionId":"` + "\u0085" + `"}]}`:           false,
		`{"acknowledgments":[{"transactionId":"` + "a\x7f" + `"}]}`:            false,
		`{"acknowledgments":[{"leaseId":7}]}`:                                  false,
		`{"acknowledgments":[],"acknowledgments":[]}`:                          false,
		`{"consumerGroup":"g","consumerGroup":"g","acknowledgments":[]}`:       false,
		`{"consumerGroup":null,"acknowledgments":[]}`:                          false,
		`{"consumerGroup":"g"}`:                                                false,
		`{"acknowledgments":null}`:                                             false,
		`{"acknowledgments":[{"transactionId":"a"}]}{`:                         false,
		`{"acknowledgments":[{"transactionId":"a"}]` + "\x00}":                 false,
		`{"acknowledgments":[{"transactionId":"a"},]}`:                         false,
		`{"acknowledgments":[{"transactionId":"` + string(make1025()) + `"}]}`: false,
	} {
		require.Equal(t, plain, requirePlainAckIsEqual(t, []byte(body)), body)
	}
}

func make1025() []byte {
	long := make([]byte, 1025)
	for i := range long {
		long[i] = 'a'
	}
	return long
}

// Every byte in every place of a body, and every body cut short or with a byte more
// or less.
func TestPlainAcksTakeNothingThatTheParserRefuses(t *testing.T) {
	t.Parallel()
	const body = `{"consumerGroup":"g","acknowledgments":[{"transactionId":"a1234567","partitionId":"p","status":"ok","leaseId":"l","error":null}, {"transactionId":"é","partitionId":"p","leaseId":"l"}]}`
	taken := 0
	for at := range len(body) {
		for c := range 256 {
			changed := []byte(body)
			changed[at] = byte(c)
			if requirePlainAckIsEqual(t, changed) {
				taken++
			}
		}
		for _, changed := range []string{body[:at], body[:at] + body[at+1:], body[:at] + body[at:at+1] + body[at:]} {
			requirePlainAckIsEqual(t, []byte(changed))
		}
	}
	require.Greater(t, taken, len(body))
}
