// Package creds gets and keeps the keys of model providers and MCP servers.
// A key comes from the environment, the user's keyring, a file of mode 0600 or
// a command; it is read anew for every request and never printed.
package creds

import (
	"fmt"
	"log/slog"
	"strings"
)

// redacted stands wherever a secret would be printed.
const redacted = "[redacted]"

// Secret is a key or token. Every way of printing or encoding it gives
// "[redacted]"; only Reveal gives the text. The zero Secret is empty.
type Secret struct{ text string }

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text, for the one place that sends it.
func (s Secret) Reveal() string { return s.text }

// Empty tells whether there is no text.
func (s Secret) Empty() bool { return s.text == "" }

// Redact replaces the secret in a text that came from outside.
func (s Secret) Redact(text string) string {
	if s.text == "" {
		return text
	}
	return strings.ReplaceAll(text, s.text, redacted)
}

// Format implements fmt.Formatter for every verb.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// String implements fmt.Stringer.
func (s Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return redacted }

// MarshalText keeps the text out of JSON, YAML and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }
