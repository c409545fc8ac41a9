package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// script is statements for pgbench, and how often they run in relation to others.
type script struct {
	name   string
	weight int
	sql    string
}

// procedureScripts are the operations of a kvLoad of one operation, by the procedure
// that brokers call. A colon before a word would be a variable of pgbench.
func procedureScripts(ns string) []script {
	call := func(op, prefix, more string) string {
		return fmt.Sprintf(`SELECT queen.kv_apply_v1(('[{"op":"%s","ns":"%s","key":"%s' || :key::text || '"%s}]')::jsonb, '%s');`,
			op, ns, prefix, more, defaultTenant)
	}
	return []script{
		{"get", kvGets, call("get", counterPrefix, "")},
		{"incr", kvIncrs, call("incr", counterPrefix, `,"delta": 1,"forever": true`)},
		{"put", 100 - kvGets - kvIncrs, call("putIfAbsent", oncePrefix, `,"value": true,"forever": true`)},
	}
}

// plainScripts do the same to the table without the procedure.
func plainScripts(ns string) []script {
	where := func(prefix string) string {
		return fmt.Sprintf(`'%s', '%s', '%s' || :key::text`, defaultTenant, ns, prefix)
	}
	return []script{
		{"plain-get", kvGets, fmt.Sprintf(`SELECT value, version, expires_at, updated_at FROM queen.kv
			WHERE (tenant_id, namespace, key) = (%s) AND (expires_at IS NULL OR expires_at > now());`, where(counterPrefix))},
		{"plain-incr", kvIncrs, fmt.Sprintf(`INSERT INTO queen.kv AS k (tenant_id, namespace, key, value, version)
			VALUES (%s, '1', nextval('queen.kv_version_seq'))
			ON CONFLICT (tenant_id, namespace, key) DO UPDATE
			SET value = to_jsonb(k.value::numeric + 1), version = EXCLUDED.version, updated_at = now()
			RETURNING value, version;`, where(counterPrefix))},
		{"plain-put", 100 - kvGets - kvIncrs, fmt.Sprintf(`INSERT INTO queen.kv (tenant_id, namespace, key, value, version)
			VALUES (%s, 'true', nextval('queen.kv_version_seq'))
			ON CONFLICT DO NOTHING RETURNING version;`, where(oncePrefix))},
	}
}

// pgbench runs scripts by as many clients as the driver has for keys, with prepared
// statements. The block has no latencies.
func (b *bench) pgbench(ctx context.Context, s *stack, scripts []script) (block, error) {
	program, err := s.lab.pgbenchProgram()
	if err != nil {
		return block{}, err
	}
	seconds := max(int(b.scale.Block.Seconds()), 1)
	args := []string{
		"--no-vacuum", "--protocol=prepared", "--client=" + strconv.Itoa(kvClients), "--jobs=2", "--time=" + strconv.Itoa(seconds),
		"--host=" + s.lab.pg.Host(), "--port=" + strconv.Itoa(s.lab.pg.Port()), "--username=" + s.lab.pg.User(),
	}
	for _, one := range scripts {
		path := filepath.Join(s.lab.dir, one.name+".sql")
		text := fmt.Sprintf("\\set key random(0, %d)\n%s\n", b.scale.Keys-1, one.sql)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return block{}, err
		}
		args = append(args, fmt.Sprintf("--file=%s@%d", path, one.weight))
	}
	if err := s.checkpoint(ctx); err != nil {
		return block{}, err
	}
	before, err := s.usage(ctx)
	if err != nil {
		return block{}, err
	}
	out, err := exec.CommandContext(ctx, program, append(args, s.name)...).CombinedOutput() //nolint:gosec // found beside the server's binaries
	if err != nil {
		return block{}, fmt.Errorf("pgbench: %w: %.500s", err, out)
	}
	after, err := s.usage(ctx)
	if err != nil {
		return block{}, err
	}
	got, err := parsePgbench(out)
	got.used = after.minus(before)
	return got, err
}

var errNoPgbench = errors.New("pgbench is missing: install the package that brings it (Debian: postgresql-15, Red Hat: postgresql-contrib), of the server's version")

// pgbenchProgram finds pgbench beside the server's binaries.
func (l *lab) pgbenchProgram() (string, error) {
	path := l.pg.Program("pgbench")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: %w", errNoPgbench, err)
	}
	return path, nil
}

var (
	pgbenchDone = regexp.MustCompile(`(?m)^number of transactions actually processed: (\d+)`)
	pgbenchRate = regexp.MustCompile(`(?m)^tps = ([0-9.]+) \(without initial connection time\)`)
	pgbenchFail = regexp.MustCompile(`(?m)^number of failed transactions: (\d+)`)
)

// parsePgbench reads the summary of a run: its transactions, and how long they took
// after the connections were made.
func parsePgbench(text []byte) (block, error) {
	find := func(what *regexp.Regexp) float64 {
		if m := what.FindSubmatch(text); m != nil {
			if v, err := strconv.ParseFloat(string(m[1]), 64); err == nil {
				return v
			}
		}
		return -1
	}
	done, rate, failed := find(pgbenchDone), find(pgbenchRate), find(pgbenchFail)
	if done <= 0 || rate <= 0 || failed < 0 {
		return block{}, fmt.Errorf("unreadable answer of pgbench: %.500s", text)
	}
	return block{pushed: int64(done), elapsed: time.Duration(done / rate * float64(time.Second)), failures: int64(failed)}, nil
}
