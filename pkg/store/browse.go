package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// BrowseRefused is a read that was refused for what it asked.
//
//nolint:errname // it is an answer, named for what became of the call
type BrowseRefused struct {
	Text  string // what is wrong, or what to ask instead
	cause error
}

// Error implements error.
func (e *BrowseRefused) Error() string { return e.Text }

// Unwrap gives the error of the database.
func (e *BrowseRefused) Unwrap() error { return e.cause }

// browseError gives a refusal its form, and leaves other errors as they are.
func browseError(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "QB001" {
		return &BrowseRefused{Text: pg.Message, cause: err}
	}
	return err
}

// filters are the filters of a listing, as its procedure takes them. What is empty
// does not filter.
type filters map[string]any

func newFilters(tenant uuid.UUID) filters { return filters{"_tenant": tenant} }

func (f filters) text(key, value string) {
	if value != "" {
		f[key] = value
	}
}

func (f filters) instant(key string, at time.Time) { f.text(key, instant(at)) }

// page sets which rows are shown; a zero limit is the usual one.
func (f filters) page(limit, offset int, after string) {
	if limit > 0 {
		f["limit"] = limit
	}
	f["offset"] = offset
	f.text("after", after)
}

func (f filters) json() (string, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("write the filters: %w", err)
	}
	return string(body), nil
}

// instant is a point in time as a filter has it, "" for none.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
