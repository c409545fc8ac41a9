// Package spans ties a transaction that requests share to the spans of those requests.
//
// The span of the transaction is a child of the first request that is recorded, so that
// it is recorded whenever one of them is, whatever the sampler says. It links to every
// recorded request that it carries, and each of them links to it. Where no request is
// recorded there is no span, and nothing is allocated.
package spans
