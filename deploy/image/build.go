package main

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/ko/pkg/build"
)

// user is nobody in particular; the chart sets the same.
const user = "65532:65532"

// tags leave out the pages of gRPC's own traces, which nobody serves: their templates
// call methods by name, so that the linker could drop none. A sixth of a program.
const tags = "grpcnotrace"

const (
	source   = "https://github.com/queenmq/queen"
	licenses = "Apache-2.0"
	buildVar = "github.com/queenmq/queen/pkg/buildinfo."
)

// compile builds an image's program for each platform and puts it on nothing.
func compile(ctx context.Context, o options, i image) (build.Result, error) {
	opts := []build.Option{
		build.WithBaseImages(func(context.Context, string) (name.Reference, build.Result, error) { return nothing(o) }),
		build.WithPlatforms(o.platforms...),
		build.WithCreationTime(v1.Time{Time: o.created}),
		build.WithTrimpath(true),
		// The revision is linked in, and the builder may see no repository.
		build.WithDefaultFlags([]string{"-buildvcs=false", "-tags=" + tags}),
		build.WithLdflags([]string{"-s", "-w", "-X " + buildVar + "version=" + o.version, "-X " + buildVar + "commit=" + o.revision}),
		build.WithDisabledSBOM(),
		build.WithUser(user),
		build.WithJobs(1),
	}
	for k, v := range describe(o, i) {
		opts = append(opts, build.WithLabel(k, v), build.WithAnnotation(k, v))
	}
	b, err := build.NewGo(ctx, o.source, opts...)
	if err != nil {
		return nil, err
	}
	path, err := b.QualifyImport(i.path)
	if err != nil {
		return nil, err
	}
	if err := b.IsSupportedReference(path); err != nil {
		return nil, fmt.Errorf("%s: %w", i.path, err)
	}
	return b.Build(ctx, path)
}

// describe is what an image says of itself, in the keys of the OCI.
func describe(o options, i image) map[string]string {
	const key = "org.opencontainers.image."
	return map[string]string{
		key + "title": i.title, key + "description": i.about, key + "licenses": licenses,
		key + "source": source, key + "url": source, key + "documentation": source + "#readme", key + "vendor": "Queen",
		key + "version": o.version, key + "revision": o.revision, key + "created": o.created.Format("2006-01-02T15:04:05Z"),
	}
}

// nothing is an image without files, for each platform.
func nothing(o options) (name.Reference, build.Result, error) {
	ref, err := name.ParseReference("scratch", name.WithDefaultRegistry(""))
	if err != nil {
		return nil, nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, text := range o.platforms {
		p, err := platform(text)
		if err != nil {
			return nil, nil, err
		}
		img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{
			OS: p.OS, Architecture: p.Architecture, Variant: p.Variant,
			RootFS: v1.RootFS{Type: "layers"}, Config: v1.Config{User: user, WorkingDir: "/"},
		})
		if err != nil {
			return nil, nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			MediaType: types.OCIManifestSchema1, Platform: p,
		}})
	}
	return ref, index, nil
}

func platform(text string) (*v1.Platform, error) {
	p, err := v1.ParsePlatform(text)
	if err != nil || p.OS == "" || p.Architecture == "" {
		return nil, fmt.Errorf("platform %q: os/architecture is allowed, such as linux/amd64", text)
	}
	return p, nil
}
