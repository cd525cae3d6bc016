package turn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/protocol/turnrpc"
)

func TestStore(t *testing.T) {
	s := OpenStore(filepath.Join(t.TempDir(), "sessions"))
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}
	a, err := s.Create("first", "demo")
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Create("", "demo")
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{
		s.Dir(a.ID): 0o700 | os.ModeDir, filepath.Join(s.Dir(a.ID), "session.json"): 0o600, filepath.Dir(s.Dir(a.ID)): 0o700 | os.ModeDir,
	} {
		if st, err := os.Stat(path); err != nil || st.Mode() != mode {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
	}
	for _, ref := range []string{"first", a.ID, a.ID[:8]} {
		if r, err := s.Find(ref); err != nil || r.ID != a.ID {
			t.Errorf("%q: %v", ref, err)
		}
	}
	for _, ref := range []string{"", "firs", "../first", a.ID + "0", "zz", strings.Repeat("f", 32)} {
		if _, err := s.Find(ref); !errors.Is(err, ErrNoSession) {
			t.Errorf("%q: %v", ref, err)
		}
	}
	for _, name := range []string{"first", "a/b", "a\nb", "a\u202eb", " a", a.ID, strings.Repeat("x", 129), "a\u00a0b"} {
		if _, err := s.Rename(b.ID, name); !errors.Is(err, ErrSessionName) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := s.Rename(b.ID[:10], "die Zweite"); err != nil {
		t.Error(err)
	}
	lock, err := s.Lock(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lock(a.ID); !errors.Is(err, ErrSessionActive) {
		t.Errorf("second lock: %v", err)
	}
	if _, err := s.Remove("first"); !errors.Is(err, ErrSessionActive) {
		t.Errorf("remove while open: %v", err)
	}
	lock.Close()
	if _, err := s.Remove("first"); err != nil {
		t.Error(err)
	}
	// A record that is damaged hides its session and no other.
	os.WriteFile(filepath.Join(s.Dir(b.ID), "session.json"), []byte("{"), 0o600)
	c, _ := s.Create("", "demo")
	if list, err := s.List(); err != nil || len(list) != 1 || list[0].ID != c.ID {
		t.Errorf("%+v %v", list, err)
	}
}

func text(s string) Event {
	return Event{Turn: "1", AgentEvent: turnrpc.AgentEvent{Kind: "text", Text: s}}
}

func TestTranscript(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	tr, err := OpenTranscript(path)
	if err != nil {
		t.Fatal(err)
	}
	early, err := tr.Read(0)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	const n = 1000
	for i := range n {
		if _, err := tr.Append(text(fmt.Sprint(i)), false); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	for i := range n {
		if e, err := early.Next(ctx); err != nil || e.Seq != uint64(i+1) || e.Text != fmt.Sprint(i) || e.Schema != 1 || e.Time.IsZero() {
			t.Fatalf("%d: %+v %v", i, e, err)
		}
	}
	for _, from := range []uint64{0, 1, 255, 256, 257, 511, 999, 1000, 5000} {
		r, err := tr.Read(from)
		if err != nil {
			t.Fatal(err)
		}
		e, ok, err := r.TryNext()
		if err != nil || ok != (from < n) || ok && e.Seq != from+1 {
			t.Errorf("from %d: %+v %v %v", from, e, ok, err)
		}
		r.Close()
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := early.Next(short); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	tr.Close()
	if _, err := early.Next(ctx); err != io.EOF {
		t.Error(err)
	}
	if _, err := tr.Append(text("x"), false); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// A torn last line is cut off, a damaged one is reported, and the rest stays.
func TestTranscriptDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	whole := `{"schema":1,"seq":1,"kind":"user","turn":"1","text":"a"}` + "\n" + "\x00\x00rubbish\n" + `{"schema":1,"seq":9,"kind":"text","turn":"1","text":"b"}` + "\n"
	for _, torn := range []string{"", `{"schema":1,"seq":4,"ki`, "{", strings.Repeat("x", 200_000)} {
		os.WriteFile(path, []byte(whole+torn), 0o600)
		var got []string
		if err := ReadTranscript(path, func(e Event) bool { got = append(got, e.Kind); return true }); err != nil || strings.Join(got, " ") != "user error text" {
			t.Errorf("read beside: %v %v", got, err)
		}
		tr, err := OpenTranscript(path)
		if err != nil {
			t.Fatal(err)
		}
		if tr.Seq() != 3 || tr.Size() != int64(len(whole)) || tr.Last().Text != "b" {
			t.Errorf("%d events, %d bytes, last %+v", tr.Seq(), tr.Size(), tr.Last())
		}
		tr.Append(text("c"), true)
		r, _ := tr.Read(0)
		got = nil
		for {
			e, ok, err := r.TryNext()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			got = append(got, fmt.Sprint(e.Seq, e.Kind))
		}
		if strings.Join(got, " ") != "1user 2error 3text 4text" {
			t.Errorf("%v", got)
		}
		r.Close()
		tr.Close()
	}
}

// writeUntilKilled is what the process of TestTranscriptKill does.
func writeUntilKilled(path string) {
	tr, err := OpenTranscript(path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		if _, err := tr.Append(text(fmt.Sprint(i, strings.Repeat(" x", i%5000))), false); err != nil {
			os.Exit(1)
		}
		if i == 200 {
			fmt.Println("going")
		}
	}
}

func TestMain(m *testing.M) {
	if path := os.Getenv("TEST_TRANSCRIPT"); path != "" {
		writeUntilKilled(path)
	}
	if socket := os.Getenv("TEST_SANDBOX"); socket != "" {
		serveSandbox(socket)
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "turn" {
		serveTurnAgent()
	}
	os.Exit(m.Run())
}

// A process that is killed while it writes leaves whole events.
func TestTranscriptKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "TEST_TRANSCRIPT="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, 6))
		time.Sleep(time.Duration(round) * 3 * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		tr, err := OpenTranscript(path)
		if err != nil {
			t.Fatal(err)
		}
		var n uint64
		err = ReadTranscript(path, func(e Event) bool {
			if n++; e.Kind != "text" || e.Seq != n {
				t.Errorf("event %d: %q", n, e.Err)
			}
			return true
		})
		if err != nil || n != tr.Seq() || n < 200 {
			t.Errorf("%d events, the transcript says %d; %v", n, tr.Seq(), err)
		}
		tr.Close()
	}
}

// A disk that is full costs the event and not the transcript.
func TestTranscriptDiskFull(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("a small file system needs root: %s", out)
	}
	defer exec.Command("umount", "-l", dir).Run()
	tr, err := OpenTranscript(filepath.Join(dir, "t.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	r, _ := tr.Read(0)
	defer r.Close()
	n := 0
	for ; err == nil; n++ {
		_, err = tr.Append(text(strings.Repeat("x", 5000)), false)
	}
	if !strings.Contains(err.Error(), "no space left") || tr.Seq() != uint64(n-1) {
		t.Fatalf("%d of %d events; %v", tr.Seq(), n, err)
	}
	if _, err := tr.Append(text("small"), false); err != nil { // what is left is enough for that
		t.Fatal(err)
	}
	for range n - 1 {
		if e, err := r.Next(t.Context()); err != nil || len(e.Text) != 5000 {
			t.Fatalf("%+v %v", e, err)
		}
	}
	if e, err := r.Next(t.Context()); err != nil || e.Text != "small" {
		t.Errorf("%+v %v", e, err)
	}
}

func FuzzTranscript(f *testing.F) {
	f.Add([]byte(`{"kind":"text"}` + "\n{"))
	f.Add([]byte("\n\n\n"))
	f.Add([]byte(`{"kind":"approval","request":{"id":"x"},"outcome":{"allowed":true}}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "t")
		os.WriteFile(path, b, 0o600)
		tr, err := OpenTranscript(path)
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if _, err := tr.Append(text("end"), false); err != nil {
			t.Fatal(err)
		}
		r, err := tr.Read(tr.Seq() - 1)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if e, ok, err := r.TryNext(); !ok || err != nil || e.Text != "end" {
			t.Fatalf("%+v %v %v", e, ok, err)
		}
	})
}
