package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/ko/pkg/build"
)

// refName is the key under which a layout keeps an image's tag.
const refName = "org.opencontainers.image.ref.name"

// write puts an image into out/NAME, an OCI layout of all platforms, and into
// out/NAME.tar, which holds that of the first. It answers a line for each.
func write(o options, i image, built build.Result) ([]string, error) {
	first, err := firstOf(built)
	if err != nil {
		return nil, err
	}
	digest, err := built.Digest()
	if err != nil {
		return nil, err
	}
	size, err := pulled(first)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(o.out, path.Base(i.name))
	if err := writeLayout(folder, o.version, built); err != nil {
		return nil, err
	}
	tag, err := name.NewTag(i.name+":"+o.version, name.WithDefaultRegistry(""))
	if err != nil {
		return nil, err
	}
	if err := tarball.WriteToFile(folder+".tar", tag, first); err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("%s:%s %s", i.name, o.version, digest),
		fmt.Sprintf("  %s, %s.tar: %.1f MB to pull", folder, folder, float64(size)/1e6),
	}, nil
}

// firstOf is the image of the first platform.
func firstOf(r build.Result) (v1.Image, error) {
	switch r := r.(type) {
	case v1.Image:
		return r, nil
	case v1.ImageIndex:
		m, err := r.IndexManifest()
		if err != nil {
			return nil, err
		}
		return r.Image(m.Manifests[0].Digest)
	}
	return nil, fmt.Errorf("neither image nor index: %T", r)
}

// pulled is what a pull of the image transfers, in bytes.
func pulled(img v1.Image) (int64, error) {
	m, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	total := m.Config.Size
	for _, l := range m.Layers {
		total += l.Size
	}
	return total, nil
}

func writeLayout(folder, version string, built build.Result) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return err
	}
	named := map[string]string{refName: version}
	var add mutate.Appendable
	switch built := built.(type) {
	case v1.Image:
		add = built
	case v1.ImageIndex:
		add = built
	}
	_, err := layout.Write(folder, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: add, Descriptor: v1.Descriptor{Annotations: named},
	}))
	return err
}
