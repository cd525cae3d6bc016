package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"msb/protocol/agent"
	"msb/vmm/engine"
	"msb/vmm/store"
)

func TestClockIsSentAtStartEveryMinuteAndAfterJumps(t *testing.T) {
	w := clockWatch{}
	wall := time.Unix(1700000000, 0)
	for i, step := range []struct {
		wall, steady time.Duration
		due          bool
	}{
		{0, 0, true}, // start
		{2 * time.Second, 2 * time.Second, false},         // nothing happens
		{7900 * time.Millisecond, 2 * time.Second, false}, // 5.9 s ahead: under the bound
		{8 * time.Second, 2 * time.Second, true},          // 6 s ahead
		{2 * time.Second, 2 * time.Second, false},         // goes on from there
		{-4 * time.Second, 2 * time.Second, true},         // 6 s back
		{40 * time.Second, 40 * time.Second, false},
		{20 * time.Second, 20 * time.Second, true},  // a minute since the last
		{3602 * time.Second, 2 * time.Second, true}, // the host slept for an hour
	} {
		wall = wall.Add(step.wall)
		w2 := w.steady + step.steady
		if due := w.due(wall, w2); due != step.due {
			t.Errorf("step %d: due %v", i, due)
		}
	}
}

func TestIdle(t *testing.T) {
	w := idleWatch{limit: 10 * time.Second}
	for i, step := range []struct {
		activity uint64
		execs    int
		at       time.Duration
		idle     bool
	}{
		{0, 0, 9 * time.Second, false},
		{1, 0, 9500 * time.Millisecond, false}, // used
		{1, 0, 19 * time.Second, false},
		{1, 1, 30 * time.Second, false}, // a command runs
		{1, 0, 39 * time.Second, false},
		{1, 0, 40 * time.Second, true},
	} {
		if idle := w.idle(step.activity, step.execs, step.at); idle != step.idle {
			t.Errorf("step %d: idle %v", i, idle)
		}
	}
	never := idleWatch{}
	if never.idle(0, 0, 1000*time.Hour) {
		t.Error("idle without a limit")
	}
}

func TestLogsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	l, err := openLog(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path) // somebody follows it
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for i := range 25 {
		if _, err := l.Write([]byte(strings.Repeat(string(rune('a'+i)), 9) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	now, _ := io.ReadAll(reader)
	before, _ := os.ReadFile(path + ".1")
	if !strings.HasPrefix(string(now), "uuuu") || len(now) != 50 || !strings.HasPrefix(string(before), "kkkk") || len(before) != 100 {
		t.Errorf("%d bytes %.10q, before %d bytes %.10q", len(now), now, len(before), before)
	}
	// It goes on where it was.
	if l, err = openLog(path, 100); err != nil || l.size != 50 {
		t.Errorf("size %d, %v", l.size, err)
	}
	l.Close()
}

// slowWriter takes a line only when it is let.
type slowWriter struct {
	let chan struct{}
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *slowWriter) Write(p []byte) (int, error) {
	<-w.let
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}
func (w *slowWriter) Close() error { return nil }

// A slow disk costs lines of the log, and never the command its speed.
func TestExecLogLeavesOutWhatItCannotWrite(t *testing.T) {
	w := &slowWriter{let: make(chan struct{})}
	l := newExecLog(w, slog.New(slog.DiscardHandler))
	body := func(typ agent.Type, n int) []byte {
		b, err := agent.AppendDataFrame(nil, 3, typ, 9, bytes.Repeat([]byte("x"), n))
		if err != nil {
			t.Fatal(err)
		}
		return b[9:]
	}
	const size = 1 << 20
	for range 10 {
		l.output(3, body(agent.ExecStderr, size))
	}
	l.output(3, body(agent.ExecStdin, 5)) // no output
	l.output(3, []byte("garbage"))
	close(w.let)
	l.close()
	l.output(3, body(agent.ExecStderr, 5)) // after the end
	var got, said int
	for _, b := range bytes.Split(bytes.TrimSpace(w.buf.Bytes()), []byte("\n")) {
		var line logLine
		if err := json.Unmarshal(b, &line); err != nil {
			t.Fatalf("%.100s: %v", b, err)
		}
		switch line.Stream {
		case "stderr":
			got += len(line.Data)
		case "system":
			said++
		}
	}
	if got == 0 || got > 4*size || said == 0 {
		t.Errorf("%d bytes logged, %d remarks", got, said)
	}
}

func TestStatusPipe(t *testing.T) {
	for _, tt := range []struct {
		name  string
		write func(s *status)
		check func(err error) bool
	}{
		{"ready", func(s *status) { s.send(Report{Ready: true}) }, func(err error) bool { return err == nil }},
		{"error", func(s *status) { s.finish(errors.New("no disk")) }, func(err error) bool { return err != nil && err.Error() == "no disk" }},
		{"locked", func(s *status) { s.finish(store.ErrLocked) }, func(err error) bool { return errors.Is(err, store.ErrLocked) }},
		{"death", func(s *status) { s.w.Close() }, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pr, pw := io.Pipe()
			s := &status{w: pw}
			go func() {
				s.stage("%s: booting", "demo")
				s.warn("slow")
				tt.write(s)
				s.stage("nobody reads this any more")
			}()
			var texts []string
			err := ReadStatus(pr, func(r Report) { texts = append(texts, r.Text) })
			if !tt.check(err) {
				t.Errorf("error %v", err)
			}
			if !reflect.DeepEqual(texts, []string{"demo: booting", "slow"}) {
				t.Errorf("%q", texts)
			}
		})
	}
	t.Run("not a report", func(t *testing.T) {
		if err := ReadStatus(strings.NewReader("panic: oh no\n"), nil); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("descriptor that is no pipe", func(t *testing.T) {
		f, err := os.CreateTemp(t.TempDir(), "x")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		t.Setenv(StatusEnv, "9999")
		if s := inheritedStatus(); s.w != nil {
			t.Error("took a descriptor that is not there")
		}
		if _, there := os.LookupEnv(StatusEnv); there {
			t.Error("children would inherit the variable")
		}
	})
}

func TestBootstrap(t *testing.T) {
	vm := engine.Capabilities{Boundary: true, Net: true}
	b := bootstrap(store.Config{Name: "demo", Env: []string{"A=b=c", "E="}}, "/dev/vda", vm)
	want := agent.BootstrapPayload{
		Hostname: "demo", User: "dev", DefaultCwd: "/home/dev", SecurityProfile: "default",
		BlockRoot:  &agent.BlockRoot{Kind: "disk-image", Device: "/dev/vda", FSType: "ext4"},
		DefaultEnv: []agent.EnvVar{{Key: "A", Value: "b=c"}, {Key: "E"}},
	}
	if !reflect.DeepEqual(b, want) {
		t.Errorf("%+v", b)
	}
	b = bootstrap(store.Config{Name: "demo", Hostname: "h", User: "u", Workdir: "/w", Net: true}, "", vm)
	if b.Hostname != "h" || b.User != "u" || b.DefaultCwd != "/w" || b.BlockRoot != nil || b.Network == nil || b.Network.IPv4 == nil {
		t.Errorf("%+v", b)
	}
}

func TestTextOfTheGuestIsCleaned(t *testing.T) {
	for in, want := range map[string]string{
		"plain":          "plain",
		" a\nb\tc\r ":    "a b c",
		"\x1b[31mred":    "?[31mred",
		"\u009b31m":      "?31m",
		"bad \xff utf-8": "bad ? utf-8",
		"äöü":            "äöü",
	} {
		if got := clean(in, 100); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := clean(strings.Repeat("ä", 100), 51); got != strings.Repeat("ä", 25)+"…" {
		t.Errorf("%q", got)
	}
}

// Each service logs as itself, even when it starts after the others.
func TestServicesLogUnderTheirOwnNames(t *testing.T) {
	var buf bytes.Buffer
	r := &run{log: slog.New(slog.NewTextHandler(&buf, nil))}
	began := make(chan struct{})
	var mu sync.Mutex
	service := func(name string) Service {
		return Service{Name: name, Run: func(_ context.Context, s Sandbox) error {
			<-began
			mu.Lock()
			defer mu.Unlock()
			s.Log.Info("it is " + name)
			return nil
		}}
	}
	r.deps.Services = []Service{service("one"), service("two"), service("three")}
	var work sync.WaitGroup
	r.startServices(t.Context(), &work)
	close(began)
	work.Wait()
	for _, name := range []string{"one", "two", "three"} {
		if want := `msg="it is ` + name + `" part=` + name + "\n"; !strings.Contains(buf.String(), want) {
			t.Errorf("no %q in\n%s", want, buf.String())
		}
	}
}
