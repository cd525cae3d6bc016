package store

import (
	"errors"
	"fmt"
)

// MaxName is the longest sandbox name in bytes; it is also the longest host name label.
const MaxName = 63

// ErrName is wrapped by every refusal of a sandbox name.
var ErrName = errors.New("invalid sandbox name")

// ValidateName refuses a name that could not be a file name and a host name on every system:
// 1 to 63 of A-Z a-z 0-9 _ . -, the first one a letter or digit.
func ValidateName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty; give one such as \"demo\"", ErrName)
	case len(name) > MaxName:
		return fmt.Errorf("%w: %d characters long (%.20q…), at most %d are allowed", ErrName, len(name), name, MaxName)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if alnum || i > 0 && (c == '_' || c == '.' || c == '-') {
			continue
		}
		if i == 0 {
			return fmt.Errorf("%w %q: it must begin with a letter or digit", ErrName, name)
		}
		return fmt.Errorf("%w %q: only letters, digits, '_', '.' and '-' are allowed", ErrName, name)
	}
	return nil
}
