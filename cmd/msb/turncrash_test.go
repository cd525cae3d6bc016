package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sandboxPIDs are the processes of sandbox x.
func sandboxPIDs(t *testing.T, home string) (runtime, engine int) {
	t.Helper()
	var v struct {
		RuntimePID int `json:"runtime_pid"`
		EnginePID  int `json:"engine_pid"`
	}
	if err := json.Unmarshal([]byte(mustMSB(t, home, "inspect", "x", "--json")), &v); err != nil || v.RuntimePID == 0 || v.EnginePID == 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	return v.RuntimePID, v.EnginePID
}

// checkTranscripts fails when a line of a transcript is no JSON.
func checkTranscripts(t *testing.T, home string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(home, "sandboxes", "x", "sessions", "*", "transcript.jsonl"))
	if len(files) == 0 {
		t.Error("there is no transcript")
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s has the line %q", path, line)
			}
		}
	}
}

// A turn is cut short by the death of each party, and its session goes on with what was said until then.
func TestDeathInATurn(t *testing.T) {
	engine := anyEngine(t)
	s := serveModel(t, canary)
	home := preparedHome(t)
	brokeredHome(t, home, engine, s)
	first := modelStep{text: "I look.", calls: []modelCall{{"read_file", `{"path":"README"}`}}}
	for _, c := range []struct {
		who   string
		kill  func() error
		start bool // the sandbox is gone, too
	}{
		{"agent", func() error {
			_, err := msb(t, home, "exec", "x", "-u", "root", "--", "sh", "-c", `for p in /proc/[0-9]*; do if grep -q '^[m]sb-turn-agent' $p/cmdline; then kill -9 ${p#/proc/}; fi; done`)
			return err
		}, false},
		{"machine", func() error { _, pid := sandboxPIDs(t, home); return unix.Kill(pid, unix.SIGKILL) }, true},
		{"runtime", func() error { pid, _ := sandboxPIDs(t, home); return unix.Kill(pid, unix.SIGKILL) }, true},
	} {
		t.Run(c.who, func(t *testing.T) {
			hanging, killed := make(chan struct{}, 1), make(chan error, 1)
			s.plays(first, modelStep{text: "And now", hang: true, hanging: hanging})
			ended := make(chan struct{})
			go func() {
				select {
				case <-hanging:
					killed <- c.kill()
				case <-ended:
					killed <- errors.New("the turn ended before the model was asked again")
				}
			}()
			r := takeTurn(t, home, "--model", "gpt")
			close(ended)
			if err := <-killed; err != nil {
				t.Fatal(err, r)
			}
			if r.code != exitFailure {
				t.Errorf("%v", r)
			}
			if c.who == "agent" && !strings.Contains(r.stdout, `"status":"lost"`) {
				t.Errorf("the end is not told: %v", r)
			}
			if c.start {
				boots(t, home, "start", "x")
			}
			checkTranscripts(t, home)
			session, _, _ := strings.Cut(mustMSB(t, home, "session", "ls", "x", "-q"), "\n")
			s.plays(modelStep{text: "Where was I?"})
			r = takeTurn(t, home, "--session", session)
			results, _ := s.seen()
			if r.code != exitOK || len(results) != 1 || len(results[0]) != 1 || !strings.Contains(results[0][0], "hello from the project") {
				t.Errorf("the session did not go on: results %q, %v", results, r)
			}
			if shown := mustMSB(t, home, "session", "show", "x", session); !strings.Contains(shown, "I look.") || !strings.Contains(shown, "Where was I?") {
				t.Errorf("the session shows\n%s", shown)
			}
			checkTranscripts(t, home)
		})
	}
}

// A disk that fills up during a turn ends the turn with a sentence; nothing is damaged, and it goes on when there is room.
func TestDiskFullInATurn(t *testing.T) {
	engine := anyEngine(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	s := serveModel(t, canary)
	home := preparedHome(t)
	small := filepath.Join(home, "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=192m"); err != nil {
		t.Skip("no small file system:", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cleanHome(small), unix.Unmount(small, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{"kernels", "images", "cache"} {
		if err := os.Symlink(filepath.Join(suite.home, dir), filepath.Join(small, dir)); err != nil {
			t.Fatal(err)
		}
	}
	brokeredHome(t, small, engine, s)
	filler := filepath.Join(small, "filler")
	fill := func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		for block := make([]byte, 1<<16); ; {
			if _, err := f.Write(block); err != nil {
				if len(block) == 1<<16 {
					block = block[:512]
					continue
				}
				return
			}
		}
	}
	s.plays(modelStep{text: "I look.", calls: []modelCall{{"read_file", `{"path":"README"}`}}},
		modelStep{before: fill, text: strings.Repeat("a long answer ", 5000)})
	r := takeTurn(t, small, "--model", "gpt")
	if r.code != exitFailure || !strings.Contains(r.stdout+r.stderr, "no space left on device") {
		t.Errorf("%v", r)
	}
	// Without any room nothing is begun, and that is said.
	s.plays(modelStep{text: "no"})
	if r := takeTurn(t, small, "--model", "gpt"); r.code != exitFailure || !strings.Contains(r.stderr, "no space left on device") {
		t.Errorf("%v", r)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	checkTranscripts(t, small)
	sessions := strings.Fields(mustMSB(t, small, "session", "ls", "x", "-q"))
	if len(sessions) == 0 {
		t.Fatal("no session is left")
	}
	s.plays(modelStep{text: "There is room again."})
	if r := takeTurn(t, small, "--session", sessions[len(sessions)-1]); r.code != exitOK {
		t.Errorf("%v", r)
	}
	if out, err := msb(t, small, "audit", "x"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	checkTranscripts(t, small)
}
