// Command broker serves Queen's HTTP surface.
//
//	broker            serve until SIGINT or SIGTERM
//	broker migrate    apply the schema and exit
//	broker check      try out a running installation over HTTP
//	broker version    print the version
//
// All settings are environment variables; the README lists them.
package main

import (
	"os"

	_ "golang.org/x/crypto/x509roots/fallback" // an image without a system has no authorities to trust

	"github.com/queenmq/queen/services/broker/command"
)

func main() { os.Exit(command.Run(os.Args[1:], os.Stdout, os.Stderr)) }
