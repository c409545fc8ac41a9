package helm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Where things are, seen from charts/tests.
const (
	// ChartDir is the chart.
	ChartDir = "../queen"

	binary = "../../.bin/helm"
)

// Values are what a user hands to Helm.
type Values struct {
	Files []string // values files
	YAML  string   // a further one, inline
	Set   []string // pairs for --set, which win
}

func (v Values) args() []string {
	var args []string
	for _, file := range v.Files {
		args = append(args, "--values", file)
	}
	if v.YAML != "" {
		args = append(args, "--values", "-")
	}
	for _, pair := range v.Set {
		args = append(args, "--set", pair)
	}
	return args
}

// Rendering says what is rendered, and for whom. The zero value is the chart as it is, for
// the newest version of Kubernetes that Helm knows, without operators.
type Rendering struct {
	Values
	Chart     string   // folder or archive, ChartDir by default
	Release   string   // "queen" by default
	Namespace string   // "default" by default
	Kube      string   // version of Kubernetes
	APIs      []string // APIs that the cluster has beside Kubernetes' own
}

// Template runs `helm template`. The error is what Helm prints.
func (r Rendering) Template() (string, error) {
	args := []string{"template", or(r.Release, "queen"), or(r.Chart, ChartDir), "--namespace", or(r.Namespace, "default")}
	if r.Kube != "" {
		args = append(args, "--kube-version", r.Kube)
	}
	for _, api := range r.APIs {
		args = append(args, "--api-versions", api)
	}
	return Run(r.YAML, append(args, r.args()...)...)
}

// Lint runs `helm lint --strict`.
func (r Rendering) Lint() (string, error) {
	args := []string{"lint", "--strict", or(r.Chart, ChartDir)}
	if r.Kube != "" {
		args = append(args, "--kube-version", r.Kube)
	}
	return Run(r.YAML, append(args, r.args()...)...)
}

// Run runs Helm with an environment in which nobody has configured anything, and without
// a cluster. It ends too soon for its garbage to be worth collecting.
func Run(input string, args ...string) (string, error) {
	return run("", input, args...)
}

func run(kubeconfig, input string, args ...string) (string, error) {
	path, err := filepath.Abs(binary)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s is not built: run `make chart-test`", path)
	}
	var out, problems bytes.Buffer
	command := exec.Command(path, args...) //nolint:noctx // go test ends it when its own time is over
	command.Env = []string{"HOME=" + os.TempDir(), "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + or(kubeconfig, os.DevNull), "GOGC=off"}
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &problems
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w\n%s%s", args[0], err, problems.String(), out.String())
	}
	return out.String(), nil
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
