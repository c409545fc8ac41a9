package pop

import "github.com/google/uuid"

// QueueChanged forgets what is remembered about a queue; the next pop reads it.
func (s *Service) QueueChanged(tenant uuid.UUID, queue string, _ bool) {
	s.holds.windows.Remove(holdKey{tenant, queue})
}
