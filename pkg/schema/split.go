package schema

import (
	"errors"
	"fmt"
	"strings"
)

// errUnterminated says that a file ends within something that was opened.
var errUnterminated = errors.New("unterminated")

// split cuts a SQL file into the pieces that are executed one by one: single
// statements, and explicit BEGIN; ... COMMIT; blocks, each as a whole. A piece
// starts at its first word, so that comments above it are not sent.
func split(text string) ([]string, error) {
	var pieces, block []string
	s := scanner{text: text}
	for {
		statement, word, err := s.next()
		if err != nil {
			return nil, err
		}
		switch {
		case statement == "" && block != nil:
			return nil, fmt.Errorf("%w: BEGIN without COMMIT: %s", errUnterminated, shorten(block[0]))
		case statement == "":
			return pieces, nil
		case block == nil && (word == "BEGIN" || word == "START"):
			block = []string{statement}
		case block == nil:
			pieces = append(pieces, statement)
		default:
			block = append(block, statement)
			if word == "COMMIT" || word == "END" {
				pieces, block = append(pieces, strings.Join(block, "\n")), nil
			}
		}
	}
}

// scanner walks over SQL text. It knows quotes, dollar quotes, comments and the
// bodies of SQL-standard functions, so that a semicolon inside them cuts nothing.
type scanner struct {
	text string
	pos  int
}

// next returns the next statement, its semicolon included, and its first word
// in upper case. The statement is empty at the end of the text.
func (s *scanner) next() (statement, first string, err error) {
	start := -1
	words := bodyTracker{}
	for s.pos < len(s.text) {
		from := s.pos
		c := s.text[from]
		switch {
		case c == ';' && start >= 0 && words.depth == 0:
			s.pos++
			return s.text[start:s.pos], first, nil
		case c == ';', c == ' ', c == '\n', c == '\r', c == '\t', c == '\f', c == '\v':
			s.pos++
			continue
		case strings.HasPrefix(s.text[from:], "--"):
			s.skipPast("\n")
			continue
		case strings.HasPrefix(s.text[from:], "/*"):
			if err := s.comment(); err != nil {
				return "", "", err
			}
			continue
		}
		if start < 0 {
			start = from
		}
		word, err := s.token()
		if err != nil {
			return "", "", err
		}
		if first == "" {
			first = word
		}
		words.see(word)
	}
	if start < 0 {
		return "", "", nil
	}
	return strings.TrimSpace(s.text[start:]), first, nil
}

// token moves over one token that is no blank and no comment. It returns an
// unquoted word in upper case, and nothing for anything else.
func (s *scanner) token() (string, error) {
	from := s.pos
	switch c := s.text[from]; {
	case c == '\'':
		return "", s.quoted('\'', false)
	case c == '"':
		return "", s.quoted('"', false)
	case c == '$':
		return "", s.dollar()
	case isWordByte(c):
		for s.pos < len(s.text) && (isWordByte(s.text[s.pos]) || s.text[s.pos] == '$') {
			s.pos++
		}
		word := strings.ToUpper(s.text[from:s.pos])
		if word == "E" && s.pos < len(s.text) && s.text[s.pos] == '\'' {
			return "", s.quoted('\'', true)
		}
		return word, nil
	}
	s.pos++
	return "", nil
}

// quoted moves past a quoted text. A doubled quote starts another one at once,
// which comes to the same; in E'...' a backslash covers the next byte.
func (s *scanner) quoted(quote byte, escapes bool) error {
	from := s.pos
	for s.pos++; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; {
		case escapes && c == '\\':
			s.pos++
		case c == quote:
			s.pos++
			return nil
		}
	}
	return s.unterminated("quote", from)
}

// comment moves past a block comment; PostgreSQL nests them.
func (s *scanner) comment() error {
	from, depth := s.pos, 0
	for s.pos < len(s.text) {
		switch {
		case strings.HasPrefix(s.text[s.pos:], "/*"):
			depth++
			s.pos += 2
		case strings.HasPrefix(s.text[s.pos:], "*/"):
			depth--
			s.pos += 2
			if depth == 0 {
				return nil
			}
		default:
			s.pos++
		}
	}
	return s.unterminated("comment", from)
}

// dollar moves past $tag$ ... $tag$; a dollar that starts no tag is one byte.
func (s *scanner) dollar() error {
	from := s.pos
	end := from + 1
	for end < len(s.text) && isWordByte(s.text[end]) {
		end++
	}
	digit := end > from+1 && s.text[from+1] >= '0' && s.text[from+1] <= '9'
	if end >= len(s.text) || s.text[end] != '$' || digit {
		s.pos++
		return nil
	}
	s.pos = end + 1
	if !s.skipPast(s.text[from : end+1]) {
		return s.unterminated("dollar quote", from)
	}
	return nil
}

// skipPast moves behind the next occurrence of mark, or to the end without one.
func (s *scanner) skipPast(mark string) bool {
	n := strings.Index(s.text[s.pos:], mark)
	if n < 0 {
		s.pos = len(s.text)
		return false
	}
	s.pos += n + len(mark)
	return true
}

func (s *scanner) unterminated(what string, from int) error {
	line := 1 + strings.Count(s.text[:from], "\n")
	return fmt.Errorf("%w: %s that starts in line %d", errUnterminated, what, line)
}

func isWordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// bodyTracker counts the open BEGIN ATOMIC and CASE of a statement: semicolons
// inside such a body do not end it.
type bodyTracker struct {
	depth int
	last  string
}

func (b *bodyTracker) see(word string) {
	switch {
	case word == "ATOMIC" && b.last == "BEGIN":
		b.depth++
	case word == "CASE" && b.depth > 0:
		b.depth++
	case word == "END" && b.depth > 0:
		b.depth--
	}
	b.last = word
}
