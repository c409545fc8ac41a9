package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	queensql "github.com/queenmq/queen/sql"
)

const (
	// Generation counts releases of the schema. It grows with every change of
	// sql/ that ships, so that of two releases one is known to be the newer:
	// testdata/released.txt holds those that have shipped.
	Generation = 4
	// MinCompatible is the oldest generation of binary that may run on a
	// database this build has applied. The one before may, since both run beside
	// each other while an installation is upgraded.
	MinCompatible = 1

	mainFile      = "schema.sql"
	procedureGlob = "procedures/*.sql"
)

// file is one embedded SQL file.
type file struct {
	name string // "schema.sql" or the procedure's base name
	text string
	sha  string
}

// load reads the embedded files in the order of application.
func load(fsys fs.FS) ([]file, error) {
	names, err := fs.Glob(fsys, procedureGlob)
	if err != nil {
		return nil, fmt.Errorf("list the procedure files: %w", err)
	}
	slices.Sort(names)
	files := make([]file, 0, len(names)+1)
	for _, name := range append([]string{mainFile}, names...) {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		sum := sha256.Sum256(text)
		files = append(files, file{
			name: strings.TrimPrefix(name, "procedures/"), text: string(text), sha: hex.EncodeToString(sum[:]),
		})
	}
	return files, nil
}

func embedded() ([]file, error) { return load(queensql.Files) }

// Fingerprint identifies the embedded files and their generation: equal fingerprints,
// equal schema, equal record.
func Fingerprint() (string, error) {
	files, err := embedded()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "generation %d, compatible %d\n", Generation, MinCompatible)
	for _, f := range files {
		fmt.Fprintf(sum, "%s %s\n", f.name, f.sha)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
