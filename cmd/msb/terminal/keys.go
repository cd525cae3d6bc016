package terminal

import (
	"fmt"
	"strings"
)

// DefaultDetachKeys leaves an interactive session.
const DefaultDetachKeys = "ctrl-]"

// DetachKeys is a sequence of bytes that leaves an interactive session.
type DetachKeys []byte

// ParseDetachKeys reads a comma separated list of keys: a character, or "ctrl-" and one of a-z @ [ \ ] ^ _.
// The empty string or "none" turns detaching off.
func ParseDetachKeys(s string) (DetachKeys, error) {
	if s == "" || s == "none" {
		return nil, nil
	}
	var keys DetachKeys
	for key := range strings.SplitSeq(s, ",") {
		b, err := parseKey(key)
		if err != nil {
			return nil, fmt.Errorf("detach keys %q: %w; use something like ctrl-] or ctrl-p,ctrl-q", s, err)
		}
		keys = append(keys, b)
	}
	return keys, nil
}

func parseKey(key string) (byte, error) {
	if len(key) == 1 {
		return key[0], nil
	}
	c, ok := strings.CutPrefix(strings.ToLower(key), "ctrl-")
	if !ok || len(c) != 1 {
		return 0, fmt.Errorf("key %q is not known", key)
	}
	switch k := c[0]; {
	case k >= 'a' && k <= 'z':
		return k - 'a' + 1, nil
	case k == '@', k >= '[' && k <= '_':
		return k &^ 0x60, nil
	}
	return 0, fmt.Errorf("key %q is not known", key)
}

// String is the list as a person would type it.
func (k DetachKeys) String() string {
	names := make([]string, len(k))
	for i, b := range k {
		switch {
		case b >= 1 && b <= 26:
			names[i] = fmt.Sprintf("Ctrl-%c", b+'A'-1)
		case b < 0x20:
			names[i] = fmt.Sprintf("Ctrl-%c", b|0x40)
		default:
			names[i] = string(rune(b))
		}
	}
	return strings.Join(names, " ")
}

// Scanner looks for detach keys in a stream of keystrokes. Bytes that may be the beginning of the sequence are held
// back until the next ones decide.
type Scanner struct {
	keys DetachKeys
	held int
}

// NewScanner returns a scanner for keys; without keys it lets everything pass.
func NewScanner(keys DetachKeys) *Scanner { return &Scanner{keys: keys} }

// Scan returns what to pass on of p, and whether the sequence was completed. Bytes behind it are dropped.
func (s *Scanner) Scan(p []byte) (pass []byte, detach bool) {
	if len(s.keys) == 0 {
		return p, false
	}
	for _, b := range p {
		for s.held > 0 && b != s.keys[s.held] {
			// The held bytes were no sequence; the longest rest of them that still may begin one stays held.
			n := s.overlap()
			pass = append(pass, s.keys[:s.held-n]...)
			s.held = n
		}
		if b != s.keys[s.held] {
			pass = append(pass, b)
			continue
		}
		if s.held++; s.held == len(s.keys) {
			s.held = 0
			return pass, true
		}
	}
	return pass, false
}

// overlap is the length of the longest proper prefix of the held bytes that is also their end.
func (s *Scanner) overlap() int {
	for n := s.held - 1; n > 0; n-- {
		if string(s.keys[:n]) == string(s.keys[s.held-n:s.held]) {
			return n
		}
	}
	return 0
}
