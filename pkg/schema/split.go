package schema

import (
	"strings"
)

// split cuts a SQL file into the pieces that are executed one by one: single
// statements, and explicit BEGIN; ... COMMIT; blocks, each as a whole. It knows
// quotes, dollar quotes and comments, so a semicolon inside them cuts nothing.
func split(text string) []string {
	var pieces []string
	var block strings.Builder
	inBlock := false
	for rest := text; rest != ""; {
		n := statementEnd(rest)
		statement := strings.TrimSpace(rest[:n])
		rest = rest[n:]
		word := firstWord(statement)
		if word == "" {
			continue
		}
		switch {
		case inBlock:
			block.WriteString("\n" + statement)
			if word == "COMMIT" {
				pieces = append(pieces, block.String())
				inBlock = false
			}
		case word == "BEGIN":
			inBlock = true
			block.Reset()
			block.WriteString(statement)
		default:
			pieces = append(pieces, statement)
		}
	}
	if inBlock {
		pieces = append(pieces, block.String())
	}
	return pieces
}

// statementEnd is the length of the first statement, its semicolon included.
func statementEnd(s string) int {
	for i := 0; i < len(s); {
		switch {
		case s[i] == ';':
			return i + 1
		case s[i] == '\'' || s[i] == '"':
			i = quoteEnd(s, i)
		case strings.HasPrefix(s[i:], "--"):
			i = lineEnd(s, i)
		case strings.HasPrefix(s[i:], "/*"):
			i = commentEnd(s, i)
		case s[i] == '$':
			i = dollarEnd(s, i)
		default:
			i++
		}
	}
	return len(s)
}

func lineEnd(s string, i int) int {
	if n := strings.IndexByte(s[i:], '\n'); n >= 0 {
		return i + n + 1
	}
	return len(s)
}

// quoteEnd skips a quoted string; a doubled quote starts another one at once,
// which comes to the same.
func quoteEnd(s string, i int) int {
	if n := strings.IndexByte(s[i+1:], s[i]); n >= 0 {
		return i + n + 2
	}
	return len(s)
}

// commentEnd skips a block comment; PostgreSQL nests them.
func commentEnd(s string, i int) int {
	depth := 0
	for i < len(s) {
		switch {
		case strings.HasPrefix(s[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(s[i:], "*/"):
			depth--
			i += 2
			if depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return len(s)
}

// dollarEnd skips $tag$ ... $tag$; a dollar that starts no tag is one byte.
func dollarEnd(s string, i int) int {
	end := i + 1
	for end < len(s) && isTagByte(s[end]) {
		end++
	}
	if end >= len(s) || s[end] != '$' || (end > i+1 && s[i+1] >= '0' && s[i+1] <= '9') {
		return i + 1
	}
	tag := s[i : end+1]
	if n := strings.Index(s[end+1:], tag); n >= 0 {
		return end + 1 + n + len(tag)
	}
	return len(s)
}

func isTagByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// firstWord is the statement's first keyword in upper case, comments skipped.
func firstWord(s string) string {
	for s != "" {
		switch {
		case strings.HasPrefix(s, "--"):
			s = s[lineEnd(s, 0):]
		case strings.HasPrefix(s, "/*"):
			s = s[commentEnd(s, 0):]
		case strings.ContainsRune(" \t\r\n;", rune(s[0])):
			s = s[1:]
		default:
			n := strings.IndexAny(s, " \t\r\n;(")
			if n < 0 {
				n = len(s)
			}
			return strings.ToUpper(s[:n])
		}
	}
	return ""
}
