package port

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"msb/protocol/frame"
)

func TestOSError(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"an errno", syscall.ENOENT, "No such file or directory (os error 2)"},
		{"one in a wrapping", fmt.Errorf("open: %w", &fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}), "Permission denied (os error 13)"},
		{"one that has no name", syscall.Errno(4000), "Errno 4000 (os error 4000)"},
		{"none at all", errors.New("the archive is empty"), "the archive is empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := OSError(tc.err); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestOwner(t *testing.T) {
	for id, want := range map[uint32]uint32{
		0: 0, 1: 0, frame.RangeStep - 1: 0, frame.RangeStep: 1, 2*frame.RangeStep - 1: 1, 5*frame.RangeStep + 7: 5,
	} {
		if got := Owner(id); got != want {
			t.Errorf("id %d belongs to slot %d, want %d", id, got, want)
		}
	}
}
