package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestArguments(t *testing.T) {
	for name, tc := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"version":            {[]string{"version"}, exitOK, "devel\n", ""},
		"help":               {[]string{"--help"}, exitOK, usage, ""},
		"unknown":            {[]string{"brokr"}, exitUsage, "", `queen: unknown arguments ["brokr"]` + "\n\n" + usage},
		"broker version":     {[]string{"broker", "version"}, exitOK, "devel\n", ""},
		"maintainer version": {[]string{"maintainer", "version"}, exitOK, "devel\n", ""},
		"sweeper version":    {[]string{"sweeper", "version"}, exitOK, "devel\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, run(tc.args, &stdout, &stderr))
			require.Equal(t, tc.stdout, stdout.String())
			require.Equal(t, tc.stderr, stderr.String())
		})
	}
}

// actor is a program that does what a script says for the service of its argument.
func actor(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "queen")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700))
	return path
}

// obedient is a service that ends when it is asked to.
const obedient = `trap 'exit 0' TERM
while :; do sleep 0.02; done
`

func TestOneThatEndsTakesTheOthersAlong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ script, want string }{
		"failed": {`[ "$1" = sweeper ] && exit 3` + "\n" + obedient, "the sweeper ended by itself: exit status 3"},
		"done":   {`[ "$1" = broker ] && exit 0` + "\n" + obedient, "the broker ended by itself: exit status 0"},
		"killed": {`[ "$1" = maintainer ] && kill -9 $$` + "\n" + obedient, "the maintainer ended by itself: signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := together(t.Context(), actor(t, tc.script), os.Environ(), os.Stdout, os.Stderr)
			require.EqualError(t, err, tc.want)
		})
	}
}

func TestAStopIsPassedOn(t *testing.T) {
	t.Parallel()
	require.NoError(t, stopped(t, "trap 'exit 0' TERM"))
}

func TestAFailedStopIsTold(t *testing.T) {
	t.Parallel()
	err := stopped(t, `trap '[ "$1" = broker ] && exit 7; exit 0' TERM`)
	require.EqualError(t, err, "stop the broker: exit status 7")
}

// stopped asks three services to stop once all are prepared for it.
func stopped(t *testing.T, prepare string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan struct{}, 3)
	done := make(chan error, 1)
	self := actor(t, prepare+"\necho started\nwhile :; do sleep 0.02; done\n")
	go func() {
		done <- together(ctx, self, os.Environ(), writer(func() { started <- struct{}{} }), os.Stderr)
	}()
	for range 3 {
		<-started
	}
	cancel()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		require.Fail(t, "the services run on")
		return nil
	}
}

// writer calls back for each write.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

func TestABinaryThatCannotStartIsNamed(t *testing.T) {
	t.Parallel()
	err := together(t.Context(), "/nonexistent/queen", nil, os.Stdout, os.Stderr)
	require.ErrorContains(t, err, "start the broker")
}

func TestBrokerAndSweeperHearOfEachOther(t *testing.T) {
	t.Parallel()
	require.Contains(t, hints(nameBroker, nil), "QUEEN_MESH_PEERS=127.0.0.1:6634")
	require.Contains(t, hints(nameBroker, nil), "QUEEN_MESH_PORT=6633")
	require.Contains(t, hints(nameSweeper, nil), "QUEEN_MESH_PEERS=127.0.0.1:6633")
	require.Contains(t, hints(nameSweeper, nil), "QUEEN_MESH_PORT=6634")
	require.Empty(t, hints(nameMaintainer, nil))
	require.Empty(t, hints(nameBroker, []string{"QUEEN_MESH_PEERS=elsewhere"}), "settings win")
}
