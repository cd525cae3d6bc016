package turn_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"msb/guest/turn/turntest"
	"msb/protocol/turnrpc"
)

func patchWith(t *testing.T, a *session, patch string) turnrpc.ApplyPatchResult {
	t.Helper()
	var r turnrpc.ApplyPatchResult
	if err := a.Call(turnrpc.MethodApplyPatch, turnrpc.ApplyPatch{Patch: patch}, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// With git and without, the same patches do the same.
func TestPatches(t *testing.T) {
	for _, noGit := range []bool{false, true} {
		t.Run(fmt.Sprintf("without git %v", noGit), func(t *testing.T) {
			a := start(t, turntest.Script{})
			a.runner.noGit = noGit
			a.write(t, "f", "one\ntwo\nthree\n")
			a.write(t, "gone", "x\n")
			a.write(t, "old", "name\n")
			outside := filepath.Join(filepath.Dir(a.repo), "outside-"+filepath.Base(a.repo))
			if err := os.Mkdir(outside, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside, filepath.Join(a.repo, "link")); err != nil {
				t.Fatal(err)
			}
			// Nothing that the workspace configures is run by a patch.
			a.write(t, ".git/config", "[core]\n\tfsmonitor = touch "+outside+"/hook\n\trepositoryformatversion = 0\n")
			a.write(t, ".git/HEAD", "ref: refs/heads/main\n")
			_ = os.MkdirAll(filepath.Join(a.repo, ".git/objects"), 0o755)
			_ = os.MkdirAll(filepath.Join(a.repo, ".git/refs"), 0o755)

			r := patchWith(t, a, `--- a/f
+++ b/f
@@ -1,3 +1,3 @@
 one
-two
+2
 three
--- /dev/null
+++ b/sub/new
@@ -0,0 +1 @@
+hello
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/old b/moved
rename from old
rename to moved
`)
			if !r.OK || r.Output != "applied:\nM f\nA sub/new\nD gone\nR old -> moved" {
				t.Errorf("%+v", r)
			}
			for name, want := range map[string]string{"f": "one\n2\nthree\n", "sub/new": "hello\n", "moved": "name\n", "gone": "", "old": ""} {
				if b, _ := os.ReadFile(filepath.Join(a.repo, name)); string(b) != want {
					t.Errorf("%s is %q", name, b)
				}
			}
			for name, patch := range map[string]string{
				"through a link": "--- /dev/null\n+++ b/link/x\n@@ -0,0 +1 @@\n+x\n",
				"git":            "--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+x\n",
				"outside":        "--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n",
				"exists":         "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n",
				"missing":        "--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n",
				"half":           "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+ONE\n--- a/sub/new\n+++ b/sub/new\n@@ -1 +1 @@\n-nope\n+b\n",
			} {
				if r := patchWith(t, a, patch); r.OK {
					t.Errorf("%s: %+v", name, r)
				}
			}
			if b, _ := os.ReadFile(filepath.Join(a.repo, "f")); string(b) != "one\n2\nthree\n" {
				t.Errorf("a patch that failed left %.40q", b)
			}
			if left, _ := os.ReadDir(outside); len(left) > 0 {
				t.Errorf("something was done outside: %v", left)
			}
		})
	}
}

func send(t *testing.T, a *session, archive []byte) {
	t.Helper()
	for at := 0; ; {
		n := min(len(archive)-at, 1000)
		var r turnrpc.ArchiveResult
		last := at+n == len(archive)
		if err := a.Call(turnrpc.MethodArchiveChunk, turnrpc.ArchiveChunk{Offset: int64(at), Last: last, Data: archive[at : at+n]}, &r); err != nil {
			t.Fatal(err)
		}
		if at += n; r.Written != int64(at) {
			t.Fatalf("written %d of %d", r.Written, at)
		}
		if last {
			return
		}
	}
}

func TestArchiveAndExport(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing: apt-get install git")
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{"kept": "same\n", "changed": "old\n", "gone": "x\n", "dir/moved": strings.Repeat("line\n", 50), "bin": "\x00\x01"} {
		_ = w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(text)), Mode: 0o644})
		_, _ = w.Write([]byte(text))
	}
	_ = w.Close()
	a := start(t, turntest.Script{})
	send(t, a, b.Bytes())

	a.write(t, "changed", "new\n")
	a.write(t, "created", "fresh\n")
	a.write(t, "bin", "\x00\x02")
	_ = os.Remove(filepath.Join(a.repo, "gone"))
	_ = os.Rename(filepath.Join(a.repo, "dir/moved"), filepath.Join(a.repo, "dir/there"))
	_ = os.Chmod(filepath.Join(a.repo, "kept"), 0o755)
	// What was committed since is part of the patch.
	var ran turnrpc.RunCommandResult
	if err := a.Call(turnrpc.MethodRunCommand, turnrpc.RunCommand{Command: "git add changed && git commit -qm x && git status --short | wc -l"}, &ran); err != nil || ran.ExitCode != 0 {
		t.Fatalf("%+v, %v", ran, err)
	}
	var p turnrpc.PatchResult
	if err := a.Call(turnrpc.MethodExportPatch, turnrpc.OK{OK: true}, &p); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"+new", "new file mode 100644", "+fresh", "GIT binary patch", "deleted file mode", "rename to dir/there", "new mode 100755"} {
		if !strings.Contains(p.Patch, want) {
			t.Errorf("the patch has no %q:\n%s", want, p.Patch)
		}
	}
	if !strings.Contains(p.Summary, "created") {
		t.Errorf("summary: %s", p.Summary)
	}
	if err := a.Call(turnrpc.MethodRunCommand, turnrpc.RunCommand{Command: "git status --short | grep -c '^A'; git fsck 2>&1"}, &ran); err != nil || !strings.HasPrefix(ran.Stdout, "0\n") {
		t.Errorf("the export changed the repository: %+v, %v", ran, err)
	}
	// Files that fit in no frame are left out and named; the rest applies.
	for _, lines := range []int{100_000, 400_000} {
		a.write(t, "huge", strings.Repeat("0123456789abcdef\n", lines))
		if err := a.Call(turnrpc.MethodExportPatch, turnrpc.OK{OK: true}, &p); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(p.Patch, "+fresh") || strings.Contains(p.Patch, "huge") || !strings.Contains(p.Summary, "left out of") || !strings.Contains(p.Summary, "huge") {
			t.Errorf("%d lines: %d bytes of patch, summary:\n%s", lines, len(p.Patch), p.Summary)
		}
	}
	fresh := t.TempDir()
	for name, text := range map[string]string{"kept": "same\n", "changed": "old\n", "gone": "x\n", "dir/moved": strings.Repeat("line\n", 50), "bin": "\x00\x01"} {
		_ = os.MkdirAll(filepath.Join(fresh, filepath.Dir(name)), 0o755)
		if err := os.WriteFile(filepath.Join(fresh, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	apply := exec.Command("git", "apply", "-")
	apply.Dir, apply.Stdin = fresh, strings.NewReader(p.Patch)
	apply.Env = append(os.Environ(), "GIT_DIR=/nonexistent")
	if out, err := apply.CombinedOutput(); err != nil {
		t.Errorf("what was not left out does not apply: %v, %s", err, out)
	}
}

func TestArchiveIsChecked(t *testing.T) {
	a := start(t, turntest.Script{})
	for name, c := range map[string]turnrpc.ArchiveChunk{
		"gap":     {Offset: 10, Data: []byte("x")},
		"large":   {Data: make([]byte, turnrpc.MaxArchiveChunk+1)},
		"garbage": {Data: bytes.Repeat([]byte("x"), 2000), Last: true},
	} {
		if err := a.Call(turnrpc.MethodArchiveChunk, c, nil); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestCommandOutput(t *testing.T) {
	// The beginning and the end of long output reach the model, and both streams.
	a := start(t, turntest.Script{Hello: extensions, Approve: allow, Model: func(n int, _ turnrpc.ProviderRequest) []turnrpc.ProviderEvent {
		if n == 0 {
			return turntest.Use(turntest.Command(`echo first; yes 'é middle' | head -c 5000000; printf '\377\n'; echo last; echo oops >&2; kill -9 $$`))
		}
		return turntest.Say("k")
	}})
	events, err := a.Start(turnrpc.UserTurn{Text: "x"}).Wait()
	if err != nil {
		t.Fatal(err)
	}
	<-a.Requests
	got := turntest.Last(<-a.Requests)
	for _, want := range []string{"exit=137\n[killed by signal 9]\nfirst\n", "bytes left out", "last\noops\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the model's result has no %q: %.200q … %.200q", want, got, got[max(0, len(got)-200):])
		}
	}
	if len(got) > 64<<10 {
		t.Errorf("it has %d bytes", len(got))
	}
	shown, tail := 0, ""
	for _, e := range events {
		if e.Kind == turnrpc.EventOutput {
			shown += len(e.Text)
			if e.Stream == "stdout" {
				tail = e.Text
			}
		}
	}
	if shown > 2<<20 || !strings.HasSuffix(tail, "last\n") {
		t.Errorf("%d bytes were shown, the last %.50q", shown, tail[max(0, len(tail)-50):])
	}
}
