package workspace

import (
	"context"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"msb/agentclient"
	guest "msb/guest/agent"
	"msb/guest/exec"
	"msb/guest/worktree"
	"msb/protocol/agent"
	"msb/vmm/relay"
)

// The sandbox of these tests is the guest agent as a process of this machine,
// with the helper program and a folder in place of /work/repo.

func TestMain(m *testing.M) {
	exec.LimitedMain()
	switch {
	case len(os.Args) > 1 && os.Args[1] == "worktree":
		os.Exit(worktree.Main(os.Args[2:]))
	case os.Getenv("MSB_TEST_AGENT") != "":
		os.Exit(serveAgent())
	}
	os.Exit(m.Run())
}

func serveAgent() int {
	os.Unsetenv("MSB_TEST_AGENT")
	port, err := net.FileConn(os.NewFile(3, "port"))
	if err != nil {
		return 1
	}
	exec.HideDescriptors()
	guest.Serve(context.Background(), guest.Ports{Control: port}, guest.Machine{}, exec.NewReaper())
	return 0
}

// rig is a workspace and its sandbox.
type rig struct {
	*Workspace
	t    *testing.T
	c    *agentclient.Client
	tree string // the workspace in the sandbox
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the guest agent in these tests changes users, which needs root")
	}
	if _, err := osexec.LookPath("git"); err != nil {
		t.Skip("git is missing: apt-get install git")
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MSB_TEST_AGENT=1")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	port, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	g, err := relay.Boot(within(t), port, nil, agent.BootstrapPayload{SecurityProfile: agent.SecurityDefault})
	if err != nil {
		t.Fatal(err)
	}
	r := relay.New(g, relay.Options{})
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := relay.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		r.Close()
		<-served
		cmd.Process.Kill()
		cmd.Wait()
	})
	c, err := agentclient.Dial(within(t), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	w := At(filepath.Join(t.TempDir(), "state"))
	w.helper, w.root, w.owner = os.Args[0], filepath.Join(t.TempDir(), "work", "repo"), strconv.Itoa(os.Getuid())
	return &rig{Workspace: w, t: t, c: c, tree: w.root}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (r *rig) bring(dir string, o Options) Baseline {
	r.t.Helper()
	b, err := r.Bring(within(r.t), r.c, dir, o)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// changes is what Diff finds, one line a file.
func (r *rig) changes() string {
	r.t.Helper()
	s, err := r.Diff(within(r.t), r.c, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return lines(s)
}

func lines(s Summary) string {
	var all []string
	for _, c := range s.Changes {
		line := string(c.Status) + " " + c.Path
		if c.From != "" {
			line = string(c.Status) + " " + c.From + " > " + c.Path
		}
		if c.OldMode != c.NewMode && c.Status != 'A' && c.Status != 'D' {
			line += " " + c.OldMode + ">" + c.NewMode
		}
		if c.Binary {
			line += " binary"
		}
		all = append(all, line)
	}
	return strings.Join(all, "\n")
}

// export is the patch.
func (r *rig) export() string {
	r.t.Helper()
	p, _, err := r.Export(within(r.t), r.c)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(p)
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := osexec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_ALLOW_PROTOCOL=file")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
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

func get(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// picture describes a folder: all files with modes and contents, .git left out.
func picture(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if d.Name() == ".git" {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		st, err := d.Info()
		if err != nil || rel == "." {
			return err
		}
		line := st.Mode().String() + " " + strconv.Quote(rel)
		switch {
		case st.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += " " + strconv.Quote(string(b[:min(len(b), 60)])) + " " + strconv.Itoa(len(b))
		case st.Mode()&os.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			line += " -> " + to
		}
		all = append(all, line)
		return nil
	}))
	return strings.Join(all, "\n")
}

func same(t *testing.T, what, got, want string) {
	t.Helper()
	if strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}
