package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// variableOwner lets services run as the owner of the schema, as an installation does
// that knows one role only.
const variableOwner = "QUEEN_TEST_OWNER"

// runtimeRole is whom the services of this test binary run as: it owns nothing.
func runtimeRole() string { return "queen_runtime_" + strconv.Itoa(os.Getpid()) }

const runtimePassword = "runtime"

// runtimeEnv is what makes a service connect as that role.
func runtimeEnv() []string {
	return []string{"PG_USER=" + runtimeRole(), "PG_PASSWORD=" + runtimePassword}
}

// brokerEnv is env for a broker, which applies no schema where it cannot.
func (d *Database) brokerEnv() []string {
	if d.owned {
		return d.env
	}
	return slices.Concat(d.env, []string{"QUEEN_APPLY_SCHEMA=0"})
}

// Monitor makes a role that may also see what PostgreSQL shows to members of
// pg_monitor alone, and answers what has a service connect as it.
func (d *Database) Monitor(t testing.TB) []string {
	t.Helper()
	if d.owned {
		return nil // the owner sees everything
	}
	name := d.Name + "_monitor"
	role := pgx.Identifier{name}.Sanitize()
	d.Exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD '"+runtimePassword+"' IN ROLE pg_monitor, "+pgx.Identifier{runtimeRole()}.Sanitize())
	t.Cleanup(func() {
		_, err := d.Pool.Exec(context.Background(), "DROP ROLE "+role)
		require.NoError(t, err)
	})
	return []string{"PG_USER=" + name, "PG_PASSWORD=" + runtimePassword}
}

// createRuntimeRole makes the role on a server.
func createRuntimeRole(ctx context.Context, admin *pgxpool.Pool) error {
	role := pgx.Identifier{runtimeRole()}.Sanitize()
	_, err := admin.Exec(ctx, "CREATE ROLE "+role+" LOGIN PASSWORD '"+runtimePassword+"'")
	if err != nil {
		return fmt.Errorf("create the role of services: %w", err)
	}
	return nil
}

// migrate applies the schema as its owner, and lets the services' role use it.
func (s *suite) migrate(ctx context.Context, db *Database) error {
	path, err := s.broker()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "migrate")
	cmd.Env = slices.Concat(cleanEnvironment(), db.ownerEnv)
	if !db.owned {
		cmd.Env = append(cmd.Env, "QUEEN_RUNTIME_ROLE="+runtimeRole())
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, out)
	}
	return nil
}

// makeTemplate migrates a database for others to be copies of.
func (s *suite) makeTemplate() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	pg, err := s.postgres()
	if err != nil {
		return "", err
	}
	db, err := pg.create(ctx, "")
	if err != nil {
		return "", err
	}
	s.onClose(func() { s.fault(pg.drop(context.Background(), db)) })
	db.Pool.Close() // nobody may be connected to what is copied
	return db.Name, s.migrate(ctx, db)
}

// createReady makes a database on which services can start: with the schema, unless
// they apply it themselves.
func (s *suite) createReady(ctx context.Context, pg *postgres, owner bool) (*Database, error) {
	if owner || s.owner() {
		db, err := pg.create(ctx, "")
		if err == nil {
			db.asOwner()
		}
		return db, err
	}
	template, err := s.template()
	if err != nil {
		return nil, err
	}
	return pg.create(ctx, template)
}
