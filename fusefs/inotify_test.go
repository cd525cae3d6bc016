package fusefs_test

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inotifyNames are the events that a test may see.
var inotifyNames = []struct {
	mask uint32
	name string
}{
	{unix.IN_MODIFY, "modify"}, {unix.IN_ATTRIB, "attrib"}, {unix.IN_CREATE, "create"}, {unix.IN_DELETE, "delete"},
	{unix.IN_MOVED_FROM, "moved-from"}, {unix.IN_MOVED_TO, "moved-to"}, {unix.IN_DELETE_SELF, "delete-self"},
	{unix.IN_MOVE_SELF, "move-self"},
}

// hear returns the inotify events of a watch on path, "event name", that come
// while do runs.
func hear(t *testing.T, path string, do func()) (events []string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(fd)
	var mask uint32
	for _, x := range inotifyNames {
		mask |= x.mask
	}
	_, err = unix.InotifyAddWatch(fd, path, mask)
	must(t, err)
	do()
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return events
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:][:size]), "\x00")
			b = b[unix.SizeofInotifyEvent+size:]
			for _, x := range inotifyNames {
				if mask&x.mask != 0 {
					events = append(events, strings.TrimSpace(x.name+" "+name))
				}
			}
		}
	}
}

// What a program of the host that watches the mount hears of a change that the
// guest made, as the manual says.
func TestHostWatchers(t *testing.T) {
	s := coherent(t)
	for _, c := range []struct {
		name, before, change, on string
		seen                     func() bool
		want                     []string
	}{
		{"removed, watched itself", "echo x >f", "rm f", "f", func() bool { _, err := os.Stat(s.at("f")); return os.IsNotExist(err) }, []string{"delete-self"}},
		{"written", "echo x >f", "echo yy >f", ".", func() bool { st, err := os.Stat(s.at("f")); return err == nil && st.Size() == 3 }, nil},
		{"created", "rm -f f", "echo yy >f", ".", func() bool { _, err := os.Stat(s.at("f")); return err == nil }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.guestSh(c.before)
			s.seen("f")
			got := hear(t, s.at(c.on), func() {
				s.guestSh(c.change)
				s.await(c.change, c.seen)
			})
			if !slices.Equal(got, c.want) {
				t.Errorf("heard %q, want %q", got, c.want)
			}
		})
	}
}
