package worktree

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	wire "msb/protocol/worktree"
)

// scanOf scans a folder and returns one line a file.
func scanOf(t *testing.T, root string, request func(w *wire.Writer), args ...string) []string {
	t.Helper()
	lines, _ := scanWithStamps(t, root, request, args...)
	return lines
}

func scanWithStamps(t *testing.T, root string, request func(w *wire.Writer), args ...string) (lines []string, stamps map[string]string) {
	t.Helper()
	in, host := io.Pipe()
	guest, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(append([]string{"scan", "--root", root}, args...), in, out)
		out.CloseWithError(err)
		done <- err
	}()
	w := wire.NewWriter(host)
	if request != nil {
		request(w)
	}
	if err := w.End(nil); err != nil {
		t.Fatal(err)
	}
	stamps = make(map[string]string)
	r := wire.NewReader(guest)
	var acked uint64
	for {
		kind, p, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if n := r.Taken(); n-acked > 1<<20 {
			w.Ack(n)
			acked = n
		}
		switch kind {
		case wire.FrameEntry:
			e, err := wire.DecodeEntry(p)
			if err != nil {
				t.Fatal(err)
			}
			stamps[e.Path] = e.Stamp
			line := fmt.Sprintf("%c %o %s", e.Kind, e.Mode, e.Path)
			switch {
			case e.Problem != "":
				line = "! " + e.Path
			case e.Same:
				line += " same"
			case e.Kind == wire.KindLink:
				line += " -> " + e.Target
			case e.Kind == wire.KindFile:
				var b bytes.Buffer
				for {
					kind, p, err := r.Next()
					if err != nil {
						t.Fatal(err)
					}
					if n := r.Taken(); n-acked > 1<<20 {
						w.Ack(n)
						acked = n
					}
					if kind == wire.FrameClose {
						break
					}
					b.Write(p)
				}
				line += fmt.Sprintf(" %d", b.Len())
			}
			lines = append(lines, line)
		case wire.FrameEnd:
			if len(p) > 0 {
				t.Fatalf("scan: %s", p)
			}
			host.Close()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			return lines, stamps
		}
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func sameLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestScanShowsFilesThatAreNotIgnored(t *testing.T) {
	root := t.TempDir()
	put(t, root+"/.git/config", "secret")
	put(t, root+"/.gitignore", "*.o\n/out/\n")
	put(t, root+"/a.o", "1")
	put(t, root+"/kept.o", "12")
	put(t, root+"/out/big", "1")
	put(t, root+"/out/kept", "123")
	put(t, root+"/sub/.gitignore", "!b.o\nglobal\n")
	put(t, root+"/sub/b.o", "1234")
	put(t, root+"/sub/.GIT/config", "secret")
	put(t, root+"/odd \xff\nname", "x")
	put(t, root+"/everywhere", "x")
	os.Symlink("/etc/passwd", root+"/link")
	os.Mkdir(root+"/empty", 0o700)
	unix.Mkfifo(root+"/fifo", 0o600)
	request := func(w *wire.Writer) {
		w.Frame(wire.FrameIgnore, []byte("everywhere"))
		w.Frame(wire.FrameTracked, []byte("kept.o"))
		w.Frame(wire.FrameTracked, []byte("out/kept"))
	}
	sameLines(t, scanOf(t, root, request),
		"f 644 .gitignore 10", "d 700 empty", "! fifo", "f 644 kept.o 2", "l 777 link -> /etc/passwd", "f 644 odd \xff\nname 1",
		"d 755 out", "f 644 out/kept 3", "d 755 sub", "f 644 sub/.gitignore 12", "f 644 sub/b.o 4")
	if all := scanOf(t, root, request, "--all"); len(all) != 14 {
		t.Errorf("everything:\n%s", strings.Join(all, "\n"))
	}
}

func TestScanSendsContentOnceOnly(t *testing.T) {
	root := t.TempDir()
	put(t, root+"/old", "content")
	for {
		put(t, root+"/young", "content")
		changed := time.Now()
		_, stamps := scanWithStamps(t, root, nil)
		if stamps["young"] == "" {
			break
		}
		if time.Since(changed) < fresh { // else the machine was held up, and it is young no more
			t.Fatal("a file that changed this second has a stamp")
		}
	}
	past := time.Now().Add(fresh + 100*time.Millisecond)
	for time.Now().Before(past) { // the change time cannot be set
		time.Sleep(time.Until(past))
	}
	_, stamps := scanWithStamps(t, root, nil)
	put(t, root+"/young", "CONTENT")
	os.Chtimes(root+"/young", time.Unix(1, 0), time.Unix(1, 0))
	sameLines(t, scanOf(t, root, func(w *wire.Writer) {
		for p, s := range stamps {
			w.Known(wire.Known{Path: p, Stamp: s})
		}
	}), "f 644 old same", "f 644 young 7")
}

func TestScanWaitsForAcknowledgements(t *testing.T) {
	root := t.TempDir()
	f, err := os.Create(root + "/big")
	if err != nil {
		t.Fatal(err)
	}
	f.Truncate(3 * wire.Window)
	f.Close()
	sameLines(t, scanOf(t, root, nil), fmt.Sprintf("f 644 big %d", 3*wire.Window))

	// A host that goes away ends it.
	in, host := io.Pipe()
	guest, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run([]string{"scan", "--root", root}, in, out) }()
	go io.Copy(io.Discard, guest)
	wire.NewWriter(host).End(nil)
	host.Close()
	if err := <-done; err == nil {
		t.Error("no error")
	}
}

func unpackInto(t *testing.T, root string, args []string, send func(w *wire.Writer)) string {
	t.Helper()
	var in, out bytes.Buffer
	w := wire.NewWriter(&in)
	send(w)
	w.End(nil)
	run(append([]string{"unpack", "--root", root, "--owner", fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())}, args...), &in, &out)
	kind, p, err := wire.NewReader(&out).Next()
	if err != nil || kind != wire.FrameEnd {
		t.Fatalf("answer %q %v", kind, err)
	}
	return string(p)
}

func file(w *wire.Writer, path, content string, mode uint32) {
	w.Entry(wire.Entry{Path: path, Kind: wire.KindFile, Mode: mode, MTime: 1e18})
	w.Frame(wire.FrameData, []byte(content))
	w.Frame(wire.FrameClose, nil)
}

func TestUnpackWritesAndReplaces(t *testing.T) {
	root := t.TempDir() + "/work/repo"
	if got := unpackInto(t, root, []string{"--empty"}, func(w *wire.Writer) {
		w.Entry(wire.Entry{Path: "d", Kind: wire.KindDir, Mode: 0o750, MTime: 1e18})
		file(w, "d/a", "1", 0o4755)
		file(w, "b", "2", 0o600)
		w.Entry(wire.Entry{Path: "l", Kind: wire.KindLink, Target: "/nowhere"})
		w.Entry(wire.Entry{Path: "e", Kind: wire.KindDir, Mode: 0o755})
		file(w, "e/x", "x", 0o644)
	}); got != "" {
		t.Fatal(got)
	}
	sameLines(t, scanOf(t, root, nil), "f 600 b 1", "d 750 d", "f 755 d/a 1", "d 755 e", "f 644 e/x 1", "l 777 l -> /nowhere")
	if st, _ := os.Stat(root + "/d"); st.ModTime().UnixNano() != 1e18 {
		t.Error(st.ModTime())
	}
	if got := unpackInto(t, root, []string{"--empty"}, func(w *wire.Writer) {}); !strings.Contains(got, "is not empty") {
		t.Errorf("answer %q", got)
	}
	// A file becomes a folder, a folder a file; what is removed is.
	if got := unpackInto(t, root, nil, func(w *wire.Writer) {
		w.Frame(wire.FrameRemove, []byte("d/a"))
		w.Frame(wire.FrameRemove, []byte("d"))
		w.Frame(wire.FrameRemove, []byte("not/there"))
		w.Entry(wire.Entry{Path: "b", Kind: wire.KindDir, Mode: 0o755})
		file(w, "b/new", "123", 0o644)
		file(w, "e", "was a folder", 0o644)
		file(w, "l", "was a link", 0o644)
	}); got != "" {
		t.Fatal(got)
	}
	sameLines(t, scanOf(t, root, nil), "d 755 b", "f 644 b/new 3", "f 644 e 12", "f 644 l 10")
	if got := unpackInto(t, root, []string{"--clear"}, func(w *wire.Writer) { file(w, "one", "", 0o644) }); got != "" {
		t.Fatal(got)
	}
	sameLines(t, scanOf(t, root, nil), "f 644 one 0")
}

// Whoever can write to the tree cannot make the helper write elsewhere.
func TestUnpackStaysInside(t *testing.T) {
	outside := t.TempDir()
	put(t, outside+"/file", "untouched")
	for name, send := range map[string]func(w *wire.Writer){
		"through a link": func(w *wire.Writer) { file(w, "out/file", "changed", 0o644) },
		"folder of a link": func(w *wire.Writer) {
			w.Entry(wire.Entry{Path: "l", Kind: wire.KindLink, Target: outside})
			file(w, "l/file", "changed", 0o644)
		},
		"dots":     func(w *wire.Writer) { file(w, "../file", "changed", 0o644) },
		"absolute": func(w *wire.Writer) { file(w, outside+"/file", "changed", 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			os.Symlink(outside, root+"/out")
			if got := unpackInto(t, root, nil, send); got == "" {
				t.Error("no error")
			}
		})
	}
	root := t.TempDir()
	os.Symlink(outside, root+"/out")
	if got := unpackInto(t, root, nil, func(w *wire.Writer) { w.Frame(wire.FrameRemove, []byte("out/file")) }); got != "" {
		t.Error(got)
	}
	if got := unpackInto(t, root, []string{"--clear"}, func(w *wire.Writer) {}); got != "" {
		t.Error(got)
	}
	if b, _ := os.ReadFile(outside + "/file"); string(b) != "untouched" {
		t.Errorf("outside: %q", b)
	}
}
