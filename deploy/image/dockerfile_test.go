package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/stretchr/testify/require"
)

// stages reads a Dockerfile and answers its stages by name, and what the linter of the
// engine says of it.
func stages(t *testing.T, text string) (byName map[string]instructions.Stage, warnings []string) {
	t.Helper()
	parsed, err := parser.Parse(strings.NewReader(text))
	require.NoError(t, err)
	for _, w := range parsed.Warnings {
		warnings = append(warnings, w.Short)
	}
	l := linter.New(&linter.Config{Warn: func(rule, _, _, message string, _ []parser.Range) {
		warnings = append(warnings, rule+": "+message)
	}})
	all, _, err := instructions.Parse(parsed.AST, l)
	require.NoError(t, err)
	byName = map[string]instructions.Stage{}
	for _, s := range all {
		byName[s.Name] = s
	}
	return byName, warnings
}

// described is what a stage and those below it make of nothing.
type described struct {
	labels     map[string]string
	user       string
	entrypoint []string
	others     []string // instructions that nobody expects
}

func follow(t *testing.T, byName map[string]instructions.Stage, name string) described {
	t.Helper()
	d := described{labels: map[string]string{}}
	if name == "scratch" {
		return d
	}
	require.Contains(t, byName, name)
	d = follow(t, byName, byName[name].BaseName)
	for _, c := range byName[name].Commands {
		switch c := c.(type) {
		case *instructions.LabelCommand:
			for _, l := range c.Labels {
				d.labels[l.Key] = strings.Trim(l.Value, `"`)
			}
		case *instructions.UserCommand:
			d.user = c.User
		case *instructions.EntrypointCommand:
			require.False(t, c.PrependShell, "there is no shell")
			d.entrypoint = c.CmdLine
		case *instructions.ArgCommand, *instructions.WorkdirCommand, *instructions.CopyCommand:
		default:
			d.others = append(d.others, c.Name())
		}
	}
	return d
}

// TestTheDockerfileMakesTheSameImages as this program does.
func TestTheDockerfileMakesTheSameImages(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(workspace, "deploy", "Dockerfile"))
	require.NoError(t, err)
	byName, warnings := stages(t, string(text))
	require.Empty(t, warnings)
	for _, i := range services() {
		name := filepath.Base(i.path)
		d := follow(t, byName, name)
		want := describe(options{version: "$VERSION", revision: "$REVISION", created: time.Unix(0, 0)}, i)
		want["org.opencontainers.image.created"] = "$CREATED"
		require.Equal(t, want, d.labels, name)
		require.Equal(t, user, d.user, name)
		require.Equal(t, []string{"/ko-app/" + name}, d.entrypoint)
		require.Empty(t, d.others, "%s: such as a health check, which is the orchestrator's", name)
	}
	require.Subset(t, slices.Collect(maps.Keys(byName)), []string{"build", "base"})
	for _, flag := range []string{"CGO_ENABLED=0", "-trimpath", "-buildvcs=false", "-tags=" + tags, "-s -w"} {
		require.True(t, bytes.Contains(text, []byte(flag)), flag)
	}
}

func TestTheLinterOfDockerfilesLooks(t *testing.T) {
	_, warnings := stages(t, "from scratch AS a\nMAINTAINER nobody\n")
	require.NotEmpty(t, warnings)
}
