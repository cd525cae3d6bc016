package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"msb/agentclient/agenttest"
)

// TestStockSandboxes uses the sandboxes of a stock installation by their names, in the layout of today and in the one
// before, and writes nothing where they live.
func TestStockSandboxes(t *testing.T) {
	home := sandboxHome(t)
	stock := filepath.Join(home, ".microsandbox")
	const odd = "A name that none of ours could have, with / and :" // its hash is what counts
	up := agentSocket(t, home, "x")
	for name, o := range map[string]agenttest.Older{"theirs": {Generation: 9}, "old": {Generation: 7}, odd: {Generation: 9}} {
		sum := sha256.Sum256([]byte(name))
		socket := filepath.Join(stock, "run", "sandboxes", hex.EncodeToString(sum[:12]), "agent.sock")
		if o.Upstream = up; o.Generation < 9 {
			socket = filepath.Join(stock, "run", "agent", hex.EncodeToString(sum[:16])+".sock")
		}
		if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
			t.Fatal(err)
		}
		serveOlder(t, o, socket)
	}
	if err := os.Mkdir(filepath.Join(stock, "db"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stock, "db", "msb.db"), []byte("SQLite format 3\x00"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := treeState(t, stock)

	work := t.TempDir()
	data := bytes.Repeat([]byte("stock"), 100_000)
	if err := os.WriteFile(filepath.Join(work, "in"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	mustMSB(t, home, "exec", "x", "--", "sh", "-c", "nc -ll -p 7000 -e cat >/dev/null 2>&1 </dev/null &")
	for _, name := range []string{"theirs", "old"} {
		t.Run(name, func(t *testing.T) {
			if out := mustMSB(t, home, "exec", name, "--", "echo", "hello"); out != "hello\n" {
				t.Errorf("exec: %q", out)
			}
			p := sit(t, home, nil, "shell", name)
			p.sees("$ ")
			p.types("echo he'r'e; exit 3\r")
			p.sees("here")
			if code := p.leaves(); code != 3 {
				t.Errorf("shell: exit code %d", code)
			}
			mustMSB(t, home, "cp", filepath.Join(work, "in"), name+":/home/dev/"+name)
			mustMSB(t, home, "cp", name+":/home/dev/"+name, filepath.Join(work, "out"))
			if back, err := os.ReadFile(filepath.Join(work, "out")); err != nil || !bytes.Equal(back, data) {
				t.Errorf("cp: %d bytes, %v", len(back), err)
			}
			mustMSB(t, home, "ping", name)
			mustMSB(t, home, "touch", name)
			f := startForward(t, home, name, "0:7000")
			connect(t, f.ports[0], name, name)
			if err := f.interrupt(); err != nil {
				t.Error(err)
			}
			if !canMount() {
				return
			}
			mnt := filepath.Join(work, name+".mnt")
			if err := os.Mkdir(mnt, 0o755); err != nil {
				t.Fatal(err)
			}
			mustMSB(t, home, "mount", name, mnt)
			got, err := os.ReadFile(filepath.Join(mnt, name))
			mustMSB(t, home, "umount", mnt)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("mount: %d bytes, %v", len(got), err)
			}
		})
	}
	mustMSB(t, home, "exec", odd, "--", "true")
	mustMSB(t, home, "ping", odd)

	// What only the owner of a sandbox can do is refused.
	for _, args := range [][]string{{"stop", "theirs"}, {"rm", "-f", "theirs"}, {"start", "theirs"}, {"logs", "theirs"}} {
		if out, err := msb(t, home, args...); err == nil || !strings.Contains(out, "no such sandbox") {
			t.Errorf("msb %s: %v: %q", strings.Join(args, " "), err, out)
		}
	}
	// Nor is its home ours when the environment names it: both programs read MSB_HOME.
	for _, args := range [][]string{{"exec", "theirs", "--", "true"}, {"ls"}, {"doctor"}, {"image", "ls"}, {"create", "nosuchimage", "-n", "y"}} {
		cmd := exec.Command(filepath.Join(suite.bin, "msb"), args...)
		cmd.Env = append(testEnv(home), "MSB_HOME="+stock)
		out, err := cmd.CombinedOutput()
		if args[0] == "exec" && err != nil {
			t.Errorf("exec: %v: %s", err, out)
		}
	}
	if after := treeState(t, stock); after != before {
		t.Errorf("the stock home has changed:\n%s\nwas\n%s", after, before)
	}
}

// treeState is everything about the files below dir, but for when they were last read.
func treeState(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		_, err = fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime(), st.Ino, st.Nlink, st.Uid, st.Gid, st.Ctim)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
