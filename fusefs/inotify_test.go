package fusefs_test

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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

// hear watches path while do runs, and returns the inotify events that come until
// enough says so: "event name".
func hear(t *testing.T, path string, do func(), enough func(events []string) bool) (events []string) {
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
	for end := time.Now().Add(patience); !enough(events) && time.Now().Before(end); time.Sleep(time.Millisecond) {
		n, _ := unix.Read(fd, buf)
		for b := buf[:max(n, 0)]; len(b) >= unix.SizeofInotifyEvent; {
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
	return events
}

// What a program of the host that watches the mount hears of a change that the
// guest made, as the manual says: the end of a file that it watches itself.
func TestHostWatchers(t *testing.T) {
	s := coherent(t)
	var got []string
	for try := 0; try < 3 && len(got) == 0; try++ { // a look at the file at the wrong moment takes the event away
		s.guestSh("echo x >f")
		s.settled()
		s.seen("f")
		got = hear(t, s.at("f"), func() { s.guestSh("rm f") }, func(events []string) bool { return len(events) > 0 })
	}
	if !slices.Equal(got, []string{"delete-self"}) {
		t.Errorf("heard %q", got)
	}
	s.guestSh("echo x >g")
	s.settled()
	s.seen("g")
	got = hear(t, s.dir, func() { s.guestSh("echo yy >g; echo z >new; rm g") }, func([]string) bool {
		_, err := os.Stat(s.at("g"))
		return os.IsNotExist(err)
	})
	if len(got) > 0 {
		t.Errorf("the manual says that nothing is heard of a directory, but %q was", got)
	}
}
