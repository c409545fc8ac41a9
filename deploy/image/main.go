// Command image builds the container images without a container engine and without a
// registry: each is one static binary on nothing, as an OCI layout and as a tar that
// `docker load`, `ctr images import` and `kind load image-archive` take.
//
//	image -source DIR -out DIR [-platforms linux/amd64,linux/arm64] [-version V] [-revision R] [-created SECONDS]
//	image ... NAME=IMPORTPATH ...     other images than those of the services
//
// The same source gives the same digests.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "image: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, images, err := parse(args, stderr)
	if err != nil {
		return err
	}
	// The programs are those of the workspace, whatever the settings of the caller.
	if err := os.Setenv("GOWORK", filepath.Join(o.source, "go.work")); err != nil {
		return err
	}
	log.SetOutput(io.Discard) // ko remarks on tags and changes of the repository, which count for nothing here
	for _, image := range images {
		fmt.Fprintf(stderr, "building %s for %s\n", image.name, strings.Join(o.platforms, ", "))
		built, err := compile(ctx, o, image)
		if err != nil {
			return fmt.Errorf("%s: %w", image.name, err)
		}
		files, err := write(o, image, built)
		if err != nil {
			return fmt.Errorf("%s: %w", image.name, err)
		}
		for _, f := range files {
			fmt.Fprintln(stdout, f)
		}
	}
	return nil
}

// options are what all images of a run have in common.
type options struct {
	source    string // the workspace
	out       string
	platforms []string
	version   string
	revision  string
	created   time.Time
}

// image is one to be built.
type image struct {
	name  string // without registry and tag
	path  string // import path of its only program
	title string
	about string
}

const prefix = "github.com/queenmq/queen/"

// services are the images of a release.
func services() []image {
	return []image{
		{"queenmq/queen-broker", prefix + "services/broker", "Queen broker", "HTTP service of Queen, a partitioned message queue on PostgreSQL"},
		{"queenmq/queen-maintainer", prefix + "services/maintainer", "Queen maintainer", "Retention and statistics of Queen, a partitioned message queue on PostgreSQL"},
		{"queenmq/queen-sweeper", prefix + "services/sweeper", "Queen sweeper", "Timers and key expiry of Queen, a partitioned message queue on PostgreSQL"},
		{"queenmq/queen", prefix + "services/queen", "Queen", "All services of Queen, a partitioned message queue on PostgreSQL, for trials"},
	}
}

func parse(args []string, stderr io.Writer) (options, []image, error) {
	var o options
	var platforms string
	var created int64
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.source, "source", ".", "folder of go.work")
	flags.StringVar(&o.out, "out", "", "folder for layouts and tars")
	flags.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "platforms, comma separated; the tar is of the first")
	flags.StringVar(&o.version, "version", "devel", "version and tag")
	flags.StringVar(&o.revision, "revision", "", "commit")
	flags.Int64Var(&created, "created", 0, "seconds since 1970 that the images bear as their time")
	if err := flags.Parse(args); err != nil {
		return o, nil, err
	}
	if o.out == "" {
		return o, nil, fmt.Errorf("-out names no folder")
	}
	if strings.TrimSpace(platforms) == "" {
		return o, nil, fmt.Errorf("-platforms names none; linux/amd64,linux/arm64 for example")
	}
	o.platforms = strings.Split(platforms, ",")
	for _, text := range o.platforms {
		if _, err := platform(text); err != nil {
			return o, nil, err
		}
	}
	o.created = time.Unix(created, 0).UTC()
	var err error
	if o.source, err = filepath.Abs(o.source); err != nil {
		return o, nil, err
	}
	images, err := named(flags.Args())
	return o, images, err
}

// named reads NAME=IMPORTPATH; without any it is the services.
func named(args []string) ([]image, error) {
	if len(args) == 0 {
		return services(), nil
	}
	var out []image
	for _, a := range args {
		name, path, ok := strings.Cut(a, "=")
		if !ok || name == "" || path == "" {
			return nil, fmt.Errorf("argument %q: NAME=IMPORTPATH is allowed", a)
		}
		out = append(out, image{name: name, path: path, title: name, about: path})
	}
	return out, nil
}
