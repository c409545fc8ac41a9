package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func requireGone(t *testing.T, e harness.Extended) {
	t.Helper()
	require.False(t, e.Success)
	require.Zero(t, e.Renewed)
	require.Nil(t, e.NewExpiresAt)
	require.Nil(t, e.ExpiresAt)
	require.Nil(t, e.LeaseExpiresAt)
}

func TestExtendAnswersTheDocumentedShape(t *testing.T) {
	t.Parallel()
	b, _, p := leased(t, 1, "")
	a := b.Post(t, "/api/v1/lease/"+p.LeaseID+"/extend", `{"seconds":500}`)
	require.Equal(t, http.StatusOK, a.Status)
	e := a.Object(t)
	requireKeys(t, e, "leaseId", "success", "renewed", "newExpiresAt", "expiresAt", "lease_expires_at")
	require.Equal(t, []any{p.LeaseID, true, 1.0}, []any{e["leaseId"], e["success"], e["renewed"]})
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, e["newExpiresAt"])
	require.Equal(t, e["newExpiresAt"], e["expiresAt"])
	require.Equal(t, e["newExpiresAt"], e["lease_expires_at"])

	a = b.Post(t, "/api/v1/lease/unknown%20lease/extend", `{}`)
	require.Equal(t, http.StatusOK, a.Status)
	require.JSONEq(t, `{"leaseId":"unknown lease","success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}`, string(a.Body))
}

func TestExtendNeverRefusesABody(t *testing.T) {
	t.Parallel()
	cases := map[string]time.Duration{ // body -> how far from now
		`{}`: 60 * time.Second, ``: 60 * time.Second, `not json`: 60 * time.Second, `{"seconds":`: 60 * time.Second, `null`: 60 * time.Second,
		`[]`: 60 * time.Second, `5`: 60 * time.Second, `{"seconds":null}`: 60 * time.Second, `{"seconds":"90"}`: 60 * time.Second,
		`{"other":1}`: 60 * time.Second, `{"seconds":0}`: time.Second, `{"seconds":-5}`: time.Second, `{"seconds":1}`: time.Second,
		`{"seconds":120}`: 120 * time.Second, `{"seconds":86400,"x":[{}]}`: 24 * time.Hour,
	}
	for body, want := range cases {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.PushEach(t, q, "p", 1)
			p := b.Pop(t, q, "leaseSeconds=1000")
			// Leave a moment of the lease, so that the extension decides.
			b.DB.Exec(t, `UPDATE queen.log_consumers SET lease_expires_at = now() + interval '900 milliseconds' WHERE partition_id = $1`, p.PartitionID)
			before := harness.Value[time.Time](t, b.DB, `SELECT now()`)
			e := b.Extend(t, p.LeaseID, body)
			after := harness.Value[time.Time](t, b.DB, `SELECT now()`)
			require.True(t, e.Success, "%+v", e)
			require.Equal(t, 1, e.Renewed)
			at := b.DB.Cursor(t, q, "p", harness.QueueMode).ExpiresAt
			require.Equal(t, at.UTC().Format("2006-01-02T15:04:05.000000Z"), *e.NewExpiresAt)
			require.False(t, at.Before(before.Add(want)), "at least %s", want)
			require.False(t, at.After(after.Add(want)), "at most %s", want)
		})
	}
}

func TestExtendNeverShortens(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 1, "")
	before := b.DB.Cursor(t, q, "p", harness.QueueMode).ExpiresAt
	e := b.Extend(t, p.LeaseID, `{"seconds":1}`)
	require.Equal(t, []any{true, 1}, []any{e.Success, e.Renewed})
	require.Equal(t, before.UTC(), b.DB.Cursor(t, q, "p", harness.QueueMode).ExpiresAt.UTC())
}

func TestExtendOfALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	t.Run("expired", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 1, "")
		b.DB.ExpireLeases(t, q)
		requireGone(t, b.Extend(t, p.LeaseID, `{}`))
		require.Len(t, b.Pop(t, q, "").Messages, 1, "it is not revived")
	})
	for _, status := range []string{"completed", "failed", "retry", "dlq"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			b, _, p := leased(t, 1, "")
			b.AckOK(t, "", p.Acks(status)...)
			requireGone(t, b.Extend(t, p.LeaseID, `{}`))
		})
	}
	t.Run("partly acknowledged is still alive", func(t *testing.T) {
		t.Parallel()
		b, _, p := leased(t, 2, "")
		b.AckOK(t, "", p.Messages[0].Ack("completed"))
		require.True(t, b.Extend(t, p.LeaseID, `{}`).Success)
	})
	for _, id := range []string{"unknown", zeroUUID, "a/b", "ż", "' OR 1=1 --"} {
		t.Run("unknown "+id, func(t *testing.T) {
			t.Parallel()
			b, _ := shared(t)
			e := b.Extend(t, id, `{"seconds":5}`)
			requireGone(t, e)
			require.Equal(t, id, e.LeaseID)
		})
	}
}

func TestExtendCoversEveryPartitionOfThePop(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(3) {
		b.PushTogether(t, q, lane, 2)
	}
	p := b.Pop(t, q, "batch=100&partitions=3&leaseSeconds=20")
	require.Equal(t, 3, p.PartitionsClaimed)
	e := b.Extend(t, p.LeaseID, `{"seconds":300}`)
	require.Equal(t, 3, e.Renewed)
	for _, lane := range lanes(3) {
		require.Greater(t, time.Until(*b.DB.Cursor(t, q, lane, harness.QueueMode).ExpiresAt), 200*time.Second)
	}

	// The answer names the earliest expiry, and rows that are over do not count.
	b.DB.Exec(t, `UPDATE queen.log_consumers SET lease_expires_at = now() + interval '1 hour' WHERE partition_id = $1`, b.DB.PartitionID(t, q, lanes(3)[0]))
	b.DB.Exec(t, `UPDATE queen.log_consumers SET lease_expires_at = now() - interval '1 hour' WHERE partition_id = $1`, b.DB.PartitionID(t, q, lanes(3)[1]))
	e = b.Extend(t, p.LeaseID, `{"seconds":600}`)
	require.Equal(t, 2, e.Renewed)
	require.Equal(t, b.DB.Cursor(t, q, lanes(3)[2], harness.QueueMode).ExpiresAt.UTC().Format("2006-01-02T15:04:05.000000Z"), *e.ExpiresAt)

	b.AckOK(t, "", p.Acks("completed")[:0]...)
	requireGone(t, b.Extend(t, "", `{}`))
}

func TestRenewedLeaseOutlivesItsFirstTerm(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"leaseTime":1}`)
	b.PushEach(t, q, "", 1)
	p := b.Pop(t, q, "")
	first := *b.DB.Cursor(t, q, "Default", harness.QueueMode).ExpiresAt
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for time.Now().Before(first.Add(500 * time.Millisecond)) {
		require.True(t, b.Extend(t, p.LeaseID, `{"seconds":5}`).Success)
		got, err := b.TryPop(ctx, harness.PopPath(q, "wait=true&timeout=300"))
		require.NoError(t, err)
		got.RequireEmpty(t)
	}
	b.AckOK(t, "", p.Acks("completed")...)
}

func TestLeaseIDsAreOpaquePathSegments(t *testing.T) {
	t.Parallel()
	b, _, p := leased(t, 1, "")
	a := b.Post(t, fmt.Sprintf("/api/v1/lease/%s/extend?unknown=1", url.PathEscape(p.LeaseID)), `{}`)
	require.Equal(t, http.StatusOK, a.Status)
	require.Equal(t, true, a.Object(t)["success"])
}
