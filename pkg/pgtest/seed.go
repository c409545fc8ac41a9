package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/pglocal"
)

const (
	// seedFormat changes when a cluster is made in another way.
	seedFormat = "1"
	seedAge    = 3 * 24 * time.Hour // unused for longer: removed
)

// ensureSeed returns a data folder that holds the template, from the cache or
// newly made. It is empty when there is no place for a cache; the server then
// starts from nothing.
func ensureSeed(ctx context.Context, sum, template string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil // without a home there is no cache, and none is needed
	}
	root := filepath.Join(cache, "queen-pgtest")
	if os.MkdirAll(root, 0o700) != nil {
		return "", nil
	}
	bin, err := pglocal.Provide(ctx, func(string, ...any) {})
	if err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(root, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	key := sha256.Sum256([]byte(strings.Join([]string{seedFormat, bin.Dir, bin.Version, sum}, "\n")))
	seed := filepath.Join(root, hex.EncodeToString(key[:8]))
	now := time.Now()
	if os.Chtimes(seed, now, now) == nil {
		return seed, nil
	}
	removeOld(root, now.Add(-seedAge))
	return seed, makeSeed(ctx, seed, template)
}

// lock waits for other test binaries that make the same seed.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// makeSeed runs a server once, stops it cleanly, and keeps a copy of its data.
func makeSeed(ctx context.Context, seed, template string) (err error) {
	s := &server{template: template}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if s.dir, err = pglocal.MakeScratch(folderPattern); err != nil {
		return err
	}
	dir := filepath.Join(s.dir, pglocal.ScratchData)
	if s.private, err = pglocal.Start(ctx, pglocal.Options{Dir: dir, Fast: true}); err != nil {
		return err
	}
	if s.admin, err = pgx.ParseConfig(s.private.URL("postgres")); err != nil {
		return err
	}
	if err := s.ensureTemplate(ctx); err != nil {
		return err
	}
	if err := s.private.Stop(ctx); err != nil {
		return err
	}
	fresh := seed + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.CopyFS(fresh, os.DirFS(s.private.DataDir())); err != nil {
		return err
	}
	return os.Rename(fresh, seed)
}

func removeOld(root string, limit time.Time) {
	for _, e := range entries(root) {
		if e.IsDir() && older(e, limit) {
			_ = os.RemoveAll(filepath.Join(root, e.Name()))
		}
	}
}

func entries(dir string) []fs.DirEntry {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	return list
}

func older(e fs.DirEntry, limit time.Time) bool {
	info, err := e.Info()
	return err == nil && info.ModTime().Before(limit)
}
