package check

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const (
	defaultTimeout = 30 * time.Second
	minTimeout     = 100 * time.Millisecond
	maxTimeout     = time.Hour
	defaultPort    = "6632"
)

const usage = `usage: broker check [flags] [URL]

Tries out a running installation: health, configure, push, pop, ack, a timer, a key,
delete. It uses a queue of its own and leaves nothing behind. The URL is that of a
broker or of what stands before several; without it QUEEN_URL, or else
http://localhost:$PORT (6632).

  --timeout 30s   longest that one step may take, the wait for the timer included
  --json          report in JSON
  --token TOKEN   bearer token, where access is guarded; without it QUEEN_TOKEN

Exit code: 0 all is well, 1 a step failed, 2 wrong arguments.
`

// Options says what to check.
type Options struct {
	URL     string        // of a broker, without a slash at its end
	Timeout time.Duration // of one step
	Token   string        // bearer; may be empty
	JSON    bool          // how to report
}

// Command is `broker check` without its first word. getenv reads the environment.
func Command(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	o, err := parse(args, getenv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "broker check: %v\n\n%s", err, usage)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var progress reporter = &textReporter{out: stdout}
	if o.JSON {
		progress = &jsonReporter{out: stdout}
	}
	if !Run(ctx, o, progress) {
		return exitFailed
	}
	return exitOK
}

// parse reads the arguments, in which flags may stand on either side of the URL.
func parse(args []string, getenv func(string) string) (Options, error) {
	var o Options
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&o.Timeout, "timeout", defaultTimeout, "")
	flags.StringVar(&o.Token, "token", getenv("QUEEN_TOKEN"), "")
	flags.BoolVar(&o.JSON, "json", false, "")
	var rest []string
	for {
		if err := flags.Parse(args); err != nil {
			return o, err
		}
		if flags.NArg() == 0 {
			break
		}
		rest, args = append(rest, flags.Arg(0)), flags.Args()[1:]
	}
	if len(rest) > 1 {
		return o, fmt.Errorf("one URL is allowed, not %d", len(rest))
	}
	if o.Timeout < minTimeout || o.Timeout > maxTimeout {
		return o, fmt.Errorf("--timeout %s: a time between %s and %s is allowed", o.Timeout, minTimeout, maxTimeout)
	}
	if strings.ContainsAny(o.Token, "\r\n\x00") {
		return o, errors.New("the token must be one line")
	}
	target, err := targetOf(rest, getenv)
	o.URL = target
	return o, err
}

// targetOf is the URL that is meant.
func targetOf(rest []string, getenv func(string) string) (string, error) {
	text := getenv("QUEEN_URL")
	if len(rest) == 1 {
		text = rest[0]
	}
	if text == "" {
		port := getenv("PORT")
		if port == "" {
			port = defaultPort
		}
		text = "http://localhost:" + port
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", errors.New("the URL cannot be read")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", fmt.Errorf("%q is no URL that begins with http:// or https:// and names a host", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("the URL ends before any ? and #")
	}
	return strings.TrimRight(u.String(), "/"), nil
}
