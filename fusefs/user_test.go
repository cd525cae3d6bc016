package fusefs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"msb/fusefs"
)

// nobody is an ordinary user that every host has.
var nobody = &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}

// TestOrdinaryUser mounts as nobody through fusermount3: the guest's user 1000
// is nobody here, and what nobody makes is 1000's there.
func TestOrdinaryUser(t *testing.T) {
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user; as that user, the other tests take this road")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("fusermount3 is missing: apt-get install fuse3")
	}
	openFUSE(t)
	base := publicDir(t)
	s := &sandbox{t: t, guest: filepath.Join(base, "guest"), dir: filepath.Join(base, "mnt"), socket: filepath.Join(base, "s")}
	must(t, os.Mkdir(s.guest, 0o755))
	must(t, os.Chown(s.guest, 1000, 1000))
	must(t, os.Mkdir(s.dir, 0o755))
	must(t, os.Chown(s.dir, int(nobody.Uid), int(nobody.Gid)))
	must(t, os.WriteFile(s.in("mine"), []byte("guest"), 0o600))
	must(t, os.Chown(s.in("mine"), 1000, 1000))
	must(t, os.WriteFile(s.in("roots"), []byte("secret"), 0o600))
	must(t, os.WriteFile(s.in("public"), []byte("public"), 0o644))
	s.opts.Root, s.script = s.guest, "honest"
	s.startGuest()
	s.mount = start(t, "mount", config{Socket: s.socket, Dir: s.dir, Options: s.opts}, nobody)
	t.Cleanup(func() { fusefs.Unmount(s.dir) })
	s.mount.expect("ready")

	as := func(script string) (string, error) {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "M="+s.dir, "HOME=/nonexistent")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: nobody}
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	ok := func(script, want string) {
		t.Helper()
		if out, err := as(script); err != nil || out != want {
			t.Errorf("%s: %q %v, want %q", script, out, err, want)
		}
	}
	ok(`stat -c %u:%g $M/mine`, "65534:65534")
	ok(`cat $M/mine`, "guest")
	ok(`stat -c %u:%g $M/public`, "0:0")
	ok(`cat $M/public`, "public")
	ok(`cd $M && echo new >f && mkdir d && ln -s f l && mv f d/ && chmod 640 d/f && touch d/f && cat d/f`, "new")
	for _, name := range []string{"d", "d/f", "l"} {
		info, err := os.Lstat(s.in(name))
		must(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1000 || st.Gid != 1000 {
			t.Errorf("%s belongs to %d:%d in the guest", name, st.Uid, st.Gid)
		}
	}
	for _, c := range [][2]string{
		{`cat $M/roots`, "Permission denied"},
		{`echo x >$M/public`, "Permission denied"},
		{`chown 0 $M/mine`, "not permitted"},
		{`chmod 777 $M/public`, "not permitted"},
		{`rm -rf $M/d; ls $M/d`, "o such file"},
		{`mkdir $M/d && rm $M/d`, "Is a directory"},
	} {
		script, want := c[0], c[1]
		if out, err := as(script); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %q %v, want %q", script, out, err, want)
		}
	}
	if flags, err := mountFlags(s.dir); err != nil || !strings.Contains(flags, "nosuid") || !strings.Contains(flags, "nodev") {
		t.Errorf("mount flags %q %v", flags, err)
	}
	s.mount.stop()
	s.mount.expect("gone")

	// In use: the lazy way. The mount process may end at once.
	s.mount = start(t, "mount", config{Socket: s.socket, Dir: s.dir, Options: s.opts}, nobody)
	s.mount.expect("ready")
	s.mount.kill()
	s.mount = start(t, "mount", config{Socket: s.socket, Dir: s.dir, Options: s.opts}, nobody)
	s.mount.expect("ready")
	ok(`cat $M/mine`, "guest")
	s.mount.stop()
}

// openFUSE gives everybody the FUSE device, as udev does, until the test ends.
func openFUSE(t *testing.T) {
	info, err := os.Stat("/dev/fuse")
	must(t, err)
	if info.Mode().Perm() == 0o666 {
		return
	}
	must(t, os.Chmod("/dev/fuse", 0o666))
	t.Cleanup(func() { os.Chmod("/dev/fuse", info.Mode().Perm()) })
}

// mountFlags returns the flags that the kernel keeps for a mount point.
func mountFlags(dir string) (string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 5 && f[4] == dir {
			return f[5], nil
		}
	}
	return "", os.ErrNotExist
}

func TestRootMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount for everybody")
	}
	s := newSandbox(t, func(s *sandbox) { s.opts.AllowOther = true; s.opts.Umask = 0o022 })
	if flags, err := mountFlags(s.dir); err != nil || !strings.Contains(flags, "nosuid") || !strings.Contains(flags, "nodev") {
		t.Errorf("mount flags %q %v", flags, err)
	}
	must(t, os.Chmod(s.guest, 0o777))
	must(t, os.WriteFile(s.in("secret"), nil, 0o600))
	must(t, os.WriteFile(s.in("open"), []byte("o"), 0o666))
	out, err := runAs(nobody, "cat "+s.at("open")+"; stat -c %a "+s.at("open"))
	if err != nil || out != "o644" {
		t.Errorf("another user: %q %v", out, err)
	}
	if out, err := runAs(nobody, "cat "+s.at("secret")); err == nil {
		t.Errorf("another user reads a file that is closed to him: %q", out)
	}
	s.mount.stop()

	s.opts = fusefs.Options{Root: s.guest, ReadOnly: true}
	s.startMount()
	wantErrno(t, "write to a read-only mount", os.WriteFile(s.at("f"), nil, 0o644), syscall.EROFS)
	wantFile(t, s.at("open"), []byte("o"))
}

func runAs(who *syscall.Credential, script string) (string, error) {
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestMountRefuses(t *testing.T) {
	s := newSandbox(t, nil)
	base := filepath.Dir(s.dir)
	must(t, os.WriteFile(filepath.Join(base, "file"), nil, 0o644))
	must(t, os.Mkdir(filepath.Join(base, "full"), 0o755))
	must(t, os.WriteFile(filepath.Join(base, "full/x"), nil, 0o644))
	must(t, os.Mkdir(filepath.Join(base, "free"), 0o755))
	must(t, os.Symlink("free", filepath.Join(base, "link")))
	must(t, os.WriteFile(s.in("file"), nil, 0o644))
	for _, c := range []struct {
		name, dir string
		options   fusefs.Options
		want      string
	}{
		{"missing", "missing", fusefs.Options{}, "does not exist: create it with: mkdir"},
		{"missing parent", "missing/too", fusefs.Options{}, "no such file"},
		{"file", "file", fusefs.Options{}, "is not a directory"},
		{"not empty", "full", fusefs.Options{}, "is not empty"},
		{"mounted already", "mnt", fusefs.Options{}, "mounted there already"},
		{"relative root", "free", fusefs.Options{Root: "home"}, "must be absolute"},
		{"missing root", "free", fusefs.Options{Root: "/no/such"}, "o such file"},
		{"root is a file", "free", fusefs.Options{Root: s.in("file")}, "is not a directory"},
		{"odd umask", "free", fusefs.Options{Umask: 0o1000}, "between 0 and 0777"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.options.Root == "" {
				c.options.Root = s.guest
			}
			h := start(t, "mount", config{Socket: s.socket, Dir: filepath.Join(base, c.dir), Options: c.options}, nil)
			if line := <-h.lines; !strings.HasPrefix(line, "error:") || !strings.Contains(line, c.want) {
				t.Errorf("got %q, want %q", line, c.want)
			}
		})
	}
	h := start(t, "mount", config{Socket: s.socket, Dir: filepath.Join(base, "link"), Options: s.opts}, nil)
	h.expect("ready")
	if _, err := os.Stat(filepath.Join(base, "free", "file")); err != nil {
		t.Errorf("mount on a symlink to a directory: %v", err)
	}
	must(t, fusefs.Unmount(filepath.Join(base, "link")))
	h.expect("gone")
	for dir, want := range map[string]string{base: "is not a mount point", "/proc": "a proc file system"} {
		if err := fusefs.Unmount(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("unmount %s: %v, want %q", dir, err, want)
		}
	}
}
