package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

// What a pull of one image may transfer, and what its program may take on disk. Without
// the tags of the build a program takes up to 32 MB.
const (
	maxPulled   = 25_000_000
	maxUnpacked = 29_000_000
)

const workspace = "../.."

var host = "linux/" + runtime.GOARCH

// images builds images and answers their folder.
func images(t *testing.T, source string, args ...string) string {
	t.Helper()
	t.Setenv("GOWORK", "") // run sets it
	out := t.TempDir()
	all := append([]string{"-source", source, "-out", out, "-created", "1700000000", "-revision", "abc"}, args...)
	require.NoError(t, run(t.Context(), all, t.Output(), t.Output()))
	return out
}

// read is the only image or index of a layout.
func read(t *testing.T, folder string) (v1.ImageIndex, v1.Descriptor) {
	t.Helper()
	index, err := layout.ImageIndexFromPath(folder)
	require.NoError(t, err)
	m, err := index.IndexManifest()
	require.NoError(t, err)
	require.Len(t, m.Manifests, 1)
	return index, m.Manifests[0]
}

func TestImagesOfTheServices(t *testing.T) {
	out := images(t, workspace, "-platforms", host, "-version", "1.2.3")
	for _, i := range services() {
		name := filepath.Base(i.name)
		t.Run(name, func(t *testing.T) {
			index, d := read(t, filepath.Join(out, name))
			require.Equal(t, "1.2.3", d.Annotations[refName])
			img, err := index.Image(d.Digest)
			require.NoError(t, err)
			size, err := pulled(img)
			require.NoError(t, err)
			require.Less(t, size, int64(maxPulled))
			checkConfig(t, img, i)
			checkProgram(t, img)
			checkTar(t, filepath.Join(out, name+".tar"), i.name+":1.2.3", img)
		})
	}
}

func checkConfig(t *testing.T, img v1.Image, i image) {
	t.Helper()
	c, err := img.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, user, c.Config.User)
	require.Equal(t, []string{"/ko-app/" + filepath.Base(i.path)}, c.Config.Entrypoint)
	require.Empty(t, c.Config.Cmd)
	require.Nil(t, c.Config.Healthcheck, "probes are those of the orchestrator")
	require.Empty(t, c.Config.ExposedPorts)
	require.Equal(t, int64(1700000000), c.Created.Unix())
	m, err := img.Manifest()
	require.NoError(t, err)
	for key, want := range map[string]string{
		"title": i.title, "description": i.about, "version": "1.2.3", "revision": "abc", "licenses": "Apache-2.0",
		"source": source, "created": "2023-11-14T22:13:20Z",
	} {
		require.Equal(t, want, c.Config.Labels["org.opencontainers.image."+key], key)
		require.Equal(t, want, m.Annotations["org.opencontainers.image."+key], key)
	}
}

// checkProgram requires one static program and no other file, and runs it.
func checkProgram(t *testing.T, img v1.Image) {
	t.Helper()
	program := onlyFile(t, img)
	require.Less(t, len(program), maxUnpacked)
	f, err := elf.NewFile(bytes.NewReader(program))
	require.NoError(t, err)
	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "the program is not static")
	}
	path := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(path, program, 0o700))
	got, err := exec.CommandContext(t.Context(), path, "version").Output()
	require.NoError(t, err)
	require.Equal(t, "1.2.3\n", string(got))
}

func onlyFile(t *testing.T, img v1.Image) []byte {
	t.Helper()
	layers, err := img.Layers()
	require.NoError(t, err)
	var files [][]byte
	for _, l := range layers {
		r, err := l.Uncompressed()
		require.NoError(t, err)
		files = append(files, regular(t, r)...)
		require.NoError(t, r.Close())
	}
	require.Len(t, files, 1)
	return files[0]
}

func regular(t *testing.T, r io.Reader) [][]byte {
	t.Helper()
	var files [][]byte
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		if h.Typeflag == tar.TypeReg {
			require.Equal(t, int64(0o555), h.Mode&0o777, "everybody may run it, nobody may write it")
			data, err := io.ReadAll(tr)
			require.NoError(t, err)
			files = append(files, data)
		}
	}
}

func checkTar(t *testing.T, path, tag string, img v1.Image) {
	t.Helper()
	m, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) })
	require.NoError(t, err)
	require.Len(t, m, 1)
	require.Equal(t, []string{tag}, m[0].RepoTags)
	packed, err := tarball.ImageFromPath(path, nil)
	require.NoError(t, err)
	want, err := img.ConfigName()
	require.NoError(t, err)
	got, err := packed.ConfigName()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestTheSameSourceGivesTheSameDigest wherever it lies, with a repository or without,
// and another revision another one.
func TestTheSameSourceGivesTheSameDigest(t *testing.T) {
	elsewhere := t.TempDir()
	for _, part := range []string{"go.work", "go.work.sum", "sql", "pkg", "services", "charts/tests"} {
		copyTo(t, elsewhere, part)
	}
	one := []string{"-platforms", host, "queenmq/queen-sweeper=" + prefix + "services/sweeper"}
	digest := func(out string) v1.Hash {
		_, d := read(t, filepath.Join(out, "queen-sweeper"))
		return d.Digest
	}
	here := digest(images(t, workspace, one...))
	require.Equal(t, here, digest(images(t, elsewhere, one...)))
	require.NotEqual(t, here, digest(images(t, workspace, append([]string{"-revision", "abd"}, one...)...)))
}

// copyTo copies a file or folder of the workspace that may be missing.
func copyTo(t *testing.T, dir, part string) {
	t.Helper()
	from, to := filepath.Join(workspace, part), filepath.Join(dir, part)
	info, err := os.Stat(from)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	require.NoError(t, err)
	if info.IsDir() {
		require.NoError(t, os.CopyFS(to, os.DirFS(from)))
		return
	}
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

// TestSeveralPlatformsMakeAnIndex of a small program, since it is the packing that counts.
func TestSeveralPlatformsMakeAnIndex(t *testing.T) {
	small := t.TempDir()
	for name, text := range map[string]string{
		"go.work": "go 1.26.0\n\nuse .\n",
		"go.mod":  "module example.test/small\n\ngo 1.26.0\n",
		"main.go": "package main\n\nfunc main() { println() }\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(small, name), []byte(text), 0o600))
	}
	out := images(t, small, "-platforms", "linux/amd64,linux/arm64", "queenmq/some=example.test/small")
	index, d := read(t, filepath.Join(out, "some"))
	inner, err := index.ImageIndex(d.Digest)
	require.NoError(t, err)
	m, err := inner.IndexManifest()
	require.NoError(t, err)
	require.Len(t, m.Manifests, 2)
	for n, want := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64} {
		img, err := inner.Image(m.Manifests[n].Digest)
		require.NoError(t, err)
		f, err := elf.NewFile(bytes.NewReader(onlyFile(t, img)))
		require.NoError(t, err)
		require.Equal(t, want, f.Machine)
	}
}

func TestWrongArguments(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no folder":        {[]string{}, "-out names no folder"},
		"no platform":      {[]string{"-out", "x", "-platforms", ""}, "-platforms names none"},
		"bad platform":     {[]string{"-out", "x", "-platforms", "linux"}, `platform "linux": os/architecture is allowed`},
		"no import path":   {[]string{"-out", "x", "queenmq/queen"}, `argument "queenmq/queen": NAME=IMPORTPATH is allowed`},
		"no such program":  {[]string{"-out", "x", "-source", workspace, "-platforms", host, "a=" + prefix + "services/nothing"}, "services/nothing"},
		"not a program":    {[]string{"-out", "x", "-source", workspace, "-platforms", host, "a=" + prefix + "pkg/wire"}, "pkg/wire"},
		"unknown variable": {[]string{"-outt", "x"}, "flag provided but not defined"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, run(t.Context(), tc.args, t.Output(), t.Output()), tc.want)
		})
	}
}
