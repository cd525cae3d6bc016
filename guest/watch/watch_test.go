package watch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

const patience = time.Minute

// host is the other side: it collects what the service sends.
type host struct {
	mu       sync.Mutex
	messages []any
	news     chan struct{}
}

func (h *host) Send(_ uint32, t agent.Type, payload any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.messages = append(h.messages, payload)
	close(h.news)
	h.news = make(chan struct{})
	return nil
}

func (h *host) SendBulk(uint32, byte, byte, uint64, []byte) error { return errors.New("no bulk") }

// await waits until want is content with what has come.
func (h *host) await(t *testing.T, what string, want func(messages []any) bool) {
	t.Helper()
	late := time.After(patience)
	for {
		h.mu.Lock()
		ok, news := want(h.messages), h.news
		all := fmt.Sprintf("%d messages", len(h.messages))
		h.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-news:
		case <-late:
			t.Fatalf("%s did not come: %s", what, all)
		}
	}
}

// events are all that came, and the last message's number.
func events(messages []any) (all []agent.WatchEvent, seq uint64) {
	for _, m := range messages {
		if p, ok := m.(agent.WatchEventsPayload); ok {
			all, seq = append(all, p.Events...), p.Seq
		}
	}
	return all, seq
}

// one is the files of a client who has one directory, and that directory and its files.
type one struct {
	dir  string
	inos map[uint64]bool
}

func (o *one) Watched(int)              {}
func (o *one) Knows(_, ino uint64) bool { return o.inos[ino] }

func (o *one) Directory(_ uint32, node uint64) (int, Client, error) {
	if node != 7 {
		return -1, nil, unix.ESTALE
	}
	fd, err := unix.Open(o.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return fd, o, err
}

// rig is a service that watches a directory.
func rig(t *testing.T) (*Service, *host, *one, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("fanotify for a file system is for root")
	}
	dir := t.TempDir()
	h := &host{news: make(chan struct{})}
	mount := &one{dir, map[uint64]bool{ino(t, dir): true}}
	s := New(h, mount, &Actors{})
	t.Cleanup(s.Close)
	s.Request(1, agent.WatchRequestPayload{Node: 7})
	h.await(t, "the start", func(m []any) bool {
		if len(m) == 0 {
			return false
		}
		if end, ok := m[0].(agent.WatchEndedPayload); ok {
			t.Skipf("this file system cannot be watched: %s", end.Message)
		}
		return true
	})
	return s, h, mount, dir
}

func ino(t *testing.T, path string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// shell changes files as a command of the guest does: in a process of its own.
func shell(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func TestEveryChangeIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		before, do string
		file       string // whose event it is, after the change
		change     uint32
	}{
		"created":     {"", "echo x > f", "f", agent.WatchCreated | agent.WatchData},
		"directory":   {"", "mkdir f", "f", agent.WatchCreated},
		"symlink":     {"", "ln -s nowhere f", "f", agent.WatchCreated},
		"link":        {"echo x > g", "ln g f", "f", agent.WatchCreated},
		"appended":    {"echo x > f", "echo y >> f", "f", agent.WatchData},
		"cut":         {"echo x > f", "truncate -s 0 f", "f", agent.WatchData},
		"mode":        {"echo x > f", "chmod 600 f", "f", agent.WatchAttr},
		"times":       {"echo x > f", "touch -d 2001-01-01 f", "f", agent.WatchAttr},
		"moved here":  {"echo x > g", "mv g f", "f", agent.WatchMovedHere},
		"moved away":  {"echo x > f", "mv f g", "", agent.WatchMovedAway},
		"removed":     {"echo x > f", "rm f", "", agent.WatchDeleted},
		"removed dir": {"mkdir f", "rmdir f", "", agent.WatchDeleted},
	} {
		t.Run(name, func(t *testing.T) {
			s, h, _, dir := rig(t)
			parent := ino(t, dir)
			shell(t, dir, c.before)
			if c.before != "" {
				s.Settle(0) // only a kick: what was before may be told together with what follows
			}
			shell(t, dir, c.do)
			var node uint64
			if c.file != "" {
				node = ino(t, filepath.Join(dir, c.file))
			}
			h.await(t, c.do, func(m []any) bool {
				all, _ := events(m)
				var seen uint32
				for _, e := range all {
					if e.Dir == parent && string(e.Name) == "f" && (node == 0 || e.Node == node) {
						seen |= e.Change
					}
				}
				return seen&c.change == c.change
			})
		})
	}
}

func TestOwnChangesAreNotTold(t *testing.T) {
	s, h, mount, dir := rig(t)
	write := func(name string, who any) {
		s.actors.Enter(who)
		defer s.actors.Leave(who)
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644); err != nil {
			t.Error(err)
		}
	}
	write("mine", mount)
	s.Settle(0)
	shell(t, dir, "echo x > foreign") // behind it in the queue
	h.await(t, "another process's file", func(m []any) bool { return told(m, "foreign") })
	write("other", "another mount")
	h.await(t, "another mount's file", func(m []any) bool { return told(m, "other") })
	h.mu.Lock()
	defer h.mu.Unlock()
	if told(h.messages, "mine") {
		t.Error("the mount was told of its own change")
	}
}

func told(messages []any, name string) bool {
	all, _ := events(messages)
	return slices.ContainsFunc(all, func(e agent.WatchEvent) bool { return string(e.Name) == name })
}

// A host that does not say that it has seen events gets no more than the window, and afterwards everything, or the
// word that something is lost.
func TestWindow(t *testing.T) {
	s, h, _, dir := rig(t)
	sent := func(m []any) (n int) {
		for _, p := range m {
			if _, ok := p.(agent.WatchEventsPayload); ok {
				n++
			}
		}
		return n
	}
	h.await(t, "the window", func(m []any) bool {
		shell(t, dir, "echo x > a; rm a")
		return sent(m) == agent.WatchWindow
	})
	shell(t, dir, "for i in $(seq 100); do echo > new$i; done")
	h.mu.Lock()
	_, seq := events(h.messages)
	over := sent(h.messages) > agent.WatchWindow || told(h.messages, "new100")
	h.mu.Unlock()
	if over {
		t.Fatal("more than the window was sent")
	}
	s.Seen(1, seq)
	h.await(t, "what had waited", func(m []any) bool { return told(m, "new100") })
}

func TestOverflowIsTold(t *testing.T) {
	s, h, _, dir := rig(t)
	parent := ino(t, dir)
	f := s.feed(1)
	for i := range 2 * maxPending { // more than the window takes meanwhile
		f.take(change{WatchEvent: agent.WatchEvent{Dir: parent, Node: uint64(i), Name: []byte{}, Change: agent.WatchData}}, false)
	}
	f.signal()
	h.await(t, "the loss", func(m []any) bool {
		_, seq := events(m)
		s.Seen(1, seq)
		return slices.ContainsFunc(m, func(p any) bool { e, ok := p.(agent.WatchEventsPayload); return ok && e.Lost })
	})
}

// Settle returns when the host has seen what was changed before.
func TestSettle(t *testing.T) {
	s, h, _, dir := rig(t)
	shell(t, dir, "echo x > f")
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		s.Settle(patience)
	}()
	h.await(t, "the file", func(m []any) bool { return told(m, "f") })
	select {
	case <-settled:
		t.Fatal("settled before the host has seen anything")
	default:
	}
	h.mu.Lock()
	_, seq := events(h.messages)
	h.mu.Unlock()
	for { // a later message may carry a part
		s.Seen(1, seq)
		select {
		case <-settled:
			return
		case <-time.After(10 * time.Millisecond):
			h.mu.Lock()
			_, seq = events(h.messages)
			h.mu.Unlock()
		}
	}
}

func TestEnds(t *testing.T) {
	ended := func(errno syscall.Errno) func([]any) bool {
		return func(m []any) bool {
			return slices.ContainsFunc(m, func(p any) bool { e, ok := p.(agent.WatchEndedPayload); return ok && e.Errno == uint32(errno) })
		}
	}
	t.Run("cancelled", func(t *testing.T) {
		s, h, _, _ := rig(t)
		s.Cancel(1)
		h.await(t, "the end", ended(unix.ECANCELED))
	})
	t.Run("client gone", func(t *testing.T) {
		s, _, _, _ := rig(t)
		select {
		case <-s.CloseOwner(0):
		case <-time.After(patience):
			t.Fatal("not quiet")
		}
	})
	t.Run("no such node", func(t *testing.T) {
		s, h, _, _ := rig(t)
		s.Request(2, agent.WatchRequestPayload{Node: 8})
		h.await(t, "the refusal", ended(unix.ESTALE))
	})
	t.Run("too many", func(t *testing.T) {
		s, h, _, _ := rig(t)
		for id := range uint32(maxFeedsPerOwner) {
			s.Request(2+id, agent.WatchRequestPayload{Node: 7})
		}
		h.await(t, "the refusal", ended(unix.EMFILE))
	})
}

// What the kernel says is taken apart without trust in its lengths.
func TestDamagedEvents(t *testing.T) {
	g := &group{}
	for _, b := range []string{"", "x", strings.Repeat("\x00", 24), strings.Repeat("\xff", 64), "\x18\x00\x00\x00\x03\x00\x40\x00" + strings.Repeat("\x02", 40)} {
		g.each([]byte(b), func(change) {})
	}
}
