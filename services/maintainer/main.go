// Command maintainer keeps Queen's database in shape: it deletes what retention
// lets go and keeps the statistics true.
//
//	maintainer             work until SIGINT or SIGTERM
//	maintainer run-once    make one retention cycle and print what it did
//	maintainer version     print the version
//
// All settings are environment variables; the README lists them.
package main

import (
	"os"

	_ "golang.org/x/crypto/x509roots/fallback" // an image without a system has no authorities to trust

	"github.com/queenmq/queen/services/maintainer/command"
)

func main() { os.Exit(command.Run(os.Args[1:], os.Stdout, os.Stderr)) }
