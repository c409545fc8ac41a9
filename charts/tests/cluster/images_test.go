package cluster_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// loadImages brings the images into a cluster that does not pull them.
func (c *cluster) loadImages(t *testing.T) {
	t.Helper()
	if c.tool != "" && c.postgres == "" {
		c.postgres = localPostgres
		tar := filepath.Join(t.TempDir(), "postgres.tar")
		c.run(t, "testdata/postgres-image", tar, c.postgres)
		c.run(t, c.tool, "load", tar)
	}
	if c.postgres == "" {
		c.postgres = officialPostgres
	}
	if len(c.loader) == 0 {
		c.say(t, "there is no IMAGE_LOADER: the cluster pulls images")
		return
	}
	tars, err := filepath.Glob(filepath.Join(output, "images", "*.tar"))
	require.NoError(t, err)
	require.NotEmpty(t, tars, "no images in %s: `make chart-e2e` builds them", output)
	for _, tar := range tars {
		c.run(t, c.loader[0], append(c.loader[1:len(c.loader):len(c.loader)], tar)...)
	}
}

// image is the whole name of an image.
func (c *cluster) image(repository string) string {
	name := repository + ":" + c.tag
	if c.registry != "" {
		name = c.registry + "/" + name
	}
	return name
}
