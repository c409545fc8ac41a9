package errtext

import (
	"context"
	"errors"
	"strings"

	"github.com/queenmq/queen/pkg/pgdb"
)

// The texts for what is no message of the database.
const (
	Pool    = "pool"
	Timeout = "the database did not answer in time"
)

// coded is a message of the database.
type coded interface {
	error
	SQLState() string
}

// Of returns the text for an error: the database's own message when there is
// one, without the names of our calls around it.
func Of(err error) string {
	text, answered := Database(err)
	switch {
	case answered:
		return text
	case errors.Is(err, pgdb.ErrPool):
		return Pool
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Timeout
	default:
		return err.Error()
	}
}

// Database returns the message of an error that the database answered with.
func Database(err error) (text string, ok bool) {
	var db coded
	if !errors.As(err, &db) {
		return "", false
	}
	return message(db), true
}

// Canceled tells that the database ended a statement which took too long.
func Canceled(err error) bool {
	var db coded
	return errors.As(err, &db) && db.SQLState() == "57014"
}

// message takes the driver's frame ("ERROR: " before, " (SQLSTATE ...)" after)
// off a message, leaving what the procedure or the server said.
func message(err coded) string {
	text := strings.TrimSuffix(err.Error(), " (SQLSTATE "+err.SQLState()+")")
	if severity, rest, ok := strings.Cut(text, ": "); ok && strings.ToUpper(severity) == severity {
		return rest
	}
	return text
}
