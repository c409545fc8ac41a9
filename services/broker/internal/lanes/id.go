package lanes

import (
	"errors"

	"github.com/google/uuid"
)

// ParseID reads a partition id as a client sent it. The error has the words of
// the database, which the wire promises.
func ParseID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) > len("{}")+36 { // Parse also takes the urn form
		return uuid.Nil, errors.New(`invalid input syntax for type uuid: "` + text + `"`)
	}
	return id, nil
}
