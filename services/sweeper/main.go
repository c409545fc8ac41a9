// Command sweeper does in Queen's database what has its time: it fires the timers
// that are due, prunes the keys that have expired, and measures what tenants use.
//
//	sweeper             work until SIGINT or SIGTERM
//	sweeper run-once    sweep once and print what was done
//	sweeper version     print the version
//
// All settings are environment variables; the README lists them.
package main

import (
	"os"

	_ "golang.org/x/crypto/x509roots/fallback" // an image without a system has no authorities to trust

	"github.com/queenmq/queen/services/sweeper/command"
)

func main() { os.Exit(command.Run(os.Args[1:], os.Stdout, os.Stderr)) }
