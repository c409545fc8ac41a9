package store

import "context"

// OthersAtWork tells whether at this moment a session of another application executes
// something on the database: those of the own name, in whatever process, do not count. A
// role that may not see the sessions of others sees those of its own.
func (s *Store) OthersAtWork(ctx context.Context) (busy bool, err error) {
	err = s.scanOne(ctx, "look for others at work", atWork(`a.application_name <> current_setting('application_name')`), nil, &busy)
	return busy, err
}

// atWork asks for sessions that execute something at this moment, of those for which a
// condition holds. An open transaction in which nothing is executed does not count.
func atWork(whose string) string {
	return `SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_stat_get_activity(NULL) AS a
		WHERE a.datid = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
		  AND a.state = 'active' AND a.backend_type = 'client backend' AND ` + whose + `)`
}
