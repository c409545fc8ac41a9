package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// config is what a person may set for the local stack.
type config struct {
	root     string // top of the repository
	dir      string // private folder: data, logs, binaries
	httpPort int
	opsPort  int // of the broker
	reset    bool
	given    string // PG_URL or PG_HOST, which names a server to use instead of a private one

	maintainerOpsPort int
	sweeperOpsPort    int

	// Where broker and sweeper tell each other of timers.
	brokerMeshPort, sweeperMeshPort int
}

const (
	defaultHTTPPort          = 6632
	defaultOpsPort           = 6640
	defaultMaintainerOpsPort = 6641
	defaultSweeperOpsPort    = 6642
	defaultBrokerMeshPort    = 6633
	defaultSweeperMeshPort   = 6634
	defaultDir               = ".local"
)

// The variables that name ports.
const (
	variablePort              = "PORT"
	variableOpsPort           = "OPS_PORT"
	variableMaintainerOpsPort = "MAINTAINER_OPS_PORT"
	variableSweeperOpsPort    = "SWEEPER_OPS_PORT"
	variableBrokerMeshPort    = "MESH_PORT"
	variableSweeperMeshPort   = "SWEEPER_MESH_PORT"
)

// ports are those that the stack listens on.
func (c config) ports() map[string]int {
	return map[string]int{
		variablePort: c.httpPort, variableOpsPort: c.opsPort,
		variableMaintainerOpsPort: c.maintainerOpsPort, variableSweeperOpsPort: c.sweeperOpsPort,
		variableBrokerMeshPort: c.brokerMeshPort, variableSweeperMeshPort: c.sweeperMeshPort,
	}
}

// loadConfig reads the environment and reports every problem at once.
func loadConfig(getenv func(string) string) (config, error) {
	var problems []error
	port := func(name string, def int) int {
		v := strings.TrimSpace(getenv(name))
		if v == "" {
			return def
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 65535 {
			problems = append(problems, fmt.Errorf("%s=%q: a TCP port between 1 and 65535 is allowed", name, v))
		}
		return n
	}
	cfg := config{
		httpPort: port(variablePort, defaultHTTPPort),
		opsPort:  port(variableOpsPort, defaultOpsPort),
		given:    firstSet(getenv, "PG_URL", "PG_HOST"),

		maintainerOpsPort: port(variableMaintainerOpsPort, defaultMaintainerOpsPort),
		sweeperOpsPort:    port(variableSweeperOpsPort, defaultSweeperOpsPort),
		brokerMeshPort:    port(variableBrokerMeshPort, defaultBrokerMeshPort),
		sweeperMeshPort:   port(variableSweeperMeshPort, defaultSweeperMeshPort),
	}
	switch v := strings.ToLower(strings.TrimSpace(getenv("RESET"))); v {
	case "", "0", "false", "no", "off":
	case "1", "true", "yes", "on":
		cfg.reset = true
	default:
		problems = append(problems, fmt.Errorf("RESET=%q: 1 (start empty) or 0 (keep the data) is allowed", v))
	}
	if cfg.reset && cfg.given != "" {
		problems = append(problems, fmt.Errorf("RESET=1 empties only a private database; it does not go together with %s", cfg.given))
	}
	root, err := repositoryRoot()
	if err != nil {
		problems = append(problems, err)
	}
	cfg.root = root
	cfg.dir = filepath.Join(root, defaultDir)
	return cfg, errors.Join(problems...)
}

// firstSet is the first of the variables that says something.
func firstSet(getenv func(string) string, names ...string) string {
	for _, name := range names {
		if strings.TrimSpace(getenv(name)) != "" {
			return name
		}
	}
	return ""
}

// repositoryRoot finds the folder that holds go.work, upwards from here.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.work")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.work in %s or above: start this from inside the repository", dir)
		}
	}
}
