package agentclient

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"msb/protocol/agent"
)

// UnsupportedOperationError says that the peer's generation is too old for a
// message. Nothing was sent and nothing else on the connection is disturbed.
type UnsupportedOperationError struct {
	Type       agent.Type
	Needs      uint8 // generation that introduced Type
	Negotiated uint8 // generation of this connection's gate
}

func (e *UnsupportedOperationError) Error() string {
	return fmt.Sprintf("%s needs agent generation %d, this sandbox speaks generation %d: restart the sandbox to bring in a current agent",
		e.Type, e.Needs, e.Negotiated)
}

// FSError is a file operation that the guest refused. errors.Is matches Errno
// and so fs.ErrNotExist, fs.ErrExist and fs.ErrPermission.
type FSError struct {
	Op      string // "stat", "open", "read", ...
	Path    string
	Message string        // the guest's own words; not safe for a terminal as they are
	Errno   syscall.Errno // 0 when the message names none
}

func (e *FSError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s: %s", e.Op, printable(e.Message))
	}
	return fmt.Sprintf("%s %s: %s", e.Op, printable(e.Path), printable(e.Message))
}

// Unwrap returns Errno when there is one.
func (e *FSError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

var _ = []error{fs.ErrNotExist, os.ErrExist} // what errors.Is(FSError) understands through Errno

// errnoOf finds the number in a text like "stat: No such file or directory
// (os error 2)"; the last one counts, as the text may quote a file name.
func errnoOf(text string) syscall.Errno {
	const mark = "(os error "
	i := strings.LastIndex(text, mark)
	if i < 0 {
		return 0
	}
	num, _, ok := strings.Cut(text[i+len(mark):], ")")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(num, 10, 12)
	if err != nil {
		return 0
	}
	return syscall.Errno(n)
}

// printable makes text of the guest safe to show: control characters and
// bytes that are not UTF-8 are escaped, and it is cut at a sane length.
func printable(s string) string {
	const max = 1024
	cut := ""
	if len(s) > max {
		s, cut = s[:max], "…"
	}
	q := strconv.Quote(s)
	q = q[1 : len(q)-1]
	q = strings.ReplaceAll(q, `\"`, `"`)
	return strings.ReplaceAll(q, `\\`, `\`) + cut
}
