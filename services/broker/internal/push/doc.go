// Package push answers push requests: it gives messages their ids, settles
// repeats within the request, hands each lane's part to fusion and puts the
// outcomes into request order.
package push
