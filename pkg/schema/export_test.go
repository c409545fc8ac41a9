package schema

import (
	"context"
	"io/fs"

	"github.com/queenmq/queen/pkg/pgdb"
)

// LockID is the appliers' lock.
const LockID = lockID

// ApplyFS is Apply with other files than the embedded ones.
func ApplyFS(ctx context.Context, db *pgdb.DB, fsys fs.FS, opts Options) (Result, error) {
	files, err := load(fsys)
	if err != nil {
		return Result{}, err
	}
	return applyFiles(ctx, db, files, opts.withDefaults())
}

// Pieces are all statements of the embedded files, in order.
func Pieces() ([]string, error) {
	files, err := embedded()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, f := range files {
		pieces, err := split(f.text)
		if err != nil {
			return nil, err
		}
		all = append(all, pieces...)
	}
	return all, nil
}

// FilePieces are the statements of each embedded file.
func FilePieces() (map[string][]string, error) {
	files, err := embedded()
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for _, f := range files {
		if all[f.name], err = split(f.text); err != nil {
			return nil, err
		}
	}
	return all, nil
}
