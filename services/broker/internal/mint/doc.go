// Package mint makes message, worker and transaction ids.
package mint
