package fusefs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/fusefs"
)

// TestSameAsLocal does the same system calls, as several users, in a directory
// of this host and in the mount, and wants the same answers: mounted as root for
// everybody, with raw symlinks and the guest's own ids, a mount is to behave as
// the file system behind it.
func TestSameAsLocal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to do the same as several users")
	}
	s := newSandbox(t, func(s *sandbox) {
		s.opts.AllowOther, s.opts.Symlinks = true, fusefs.Raw
	})
	local := publicDir(t)
	defer syscall.Umask(syscall.Umask(0))
	must(t, os.Chmod(s.guest, 0o755))
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			dirs := [2]string{filepath.Join(local, sc.name), s.at(sc.name)}
			for _, d := range dirs {
				must(t, os.Mkdir(d, 0o777))
			}
			bad := 0
			for i, st := range sc.steps {
				want, got := st.run(dirs[0]), st.run(dirs[1])
				if want != got {
					t.Errorf("step %d: %v: %s, locally %s", i, st, got, want)
					if bad++; bad > 20 {
						t.Fatal("and so on")
					}
				}
			}
		})
	}
}

type scenario struct {
	name  string
	steps []step
}

// step is a system call as somebody. With watch, the answer also says which
// times of that file it has changed.
type step struct {
	uid   int
	gids  []int
	call  string
	args  []any
	watch string
}

func (s step) String() string {
	return fmt.Sprintf("%d%v %s %v", s.uid, s.gids, s.call, s.args)
}

func (s step) run(dir string) string {
	var before, after unix.Stat_t
	if s.watch != "" {
		_ = unix.Lstat(filepath.Join(dir, s.watch), &before)
		afterTick(before.Ctim)
	}
	answer := asSomebody(s.uid, s.gids, func() string { return perform(dir, s.call, s.args) })
	if s.watch != "" {
		err := unix.Lstat(filepath.Join(dir, s.watch), &after)
		answer += fmt.Sprintf(" %s: %v m=%v c=%v", s.watch, err, before.Mtim != after.Mtim, before.Ctim != after.Ctim)
	}
	return answer
}

// afterTick returns when a change that is made now gets another time than then:
// file systems take theirs from a clock that ticks a few hundred times a second.
func afterTick(then unix.Timespec) {
	for {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil || now.Nano() > then.Nano() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// asSomebody calls f on a thread with other effective ids.
func asSomebody(uid int, gids []int, f func() string) string {
	if uid == 0 && len(gids) == 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	set := func(call uintptr, args ...uintptr) {
		if _, _, errno := unix.RawSyscall(call, args[0], args[1], args[2]); errno != 0 {
			panic(errno)
		}
	}
	keep := ^uintptr(0)
	setGroups(gids)
	set(unix.SYS_SETRESGID, keep, uintptr(gids[0]), keep)
	set(unix.SYS_SETRESUID, keep, uintptr(uid), keep)
	defer func() {
		set(unix.SYS_SETRESUID, keep, 0, keep)
		set(unix.SYS_SETRESGID, keep, 0, keep)
		setGroups(nil)
	}()
	return f()
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	if e, ok := err.(syscall.Errno); ok {
		return unix.ErrnoName(e)
	}
	return err.Error()
}

// running copies a program to path, runs it, and does something to it meanwhile.
func running(path, how string) string {
	prog, err := exec.LookPath("sleep")
	if err != nil {
		return err.Error()
	}
	data, err := os.ReadFile(prog)
	if err != nil {
		return err.Error()
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		return err.Error()
	}
	cmd := exec.Command(path, "1000")
	for { // another test's child may have the file open for writing for a moment
		if err = cmd.Start(); !errors.Is(err, unix.ETXTBSY) {
			break
		}
		cmd = exec.Command(path, "1000")
	}
	if err != nil {
		return err.Error()
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	switch how {
	case "write":
		_, err = unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	case "truncate":
		err = unix.Truncate(path, 1)
	case "trunc":
		_, err = unix.Open(path, unix.O_RDWR|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	case "rename":
		err = unix.Rename(path, path+"2")
		if err == nil {
			err = unix.Rename(path+"2", path)
		}
	case "unlink":
		err = unix.Unlink(path)
	}
	return result(err)
}

// perform makes one system call in dir.
func perform(dir, call string, args []any) string {
	path := func(i int) string {
		name := args[i].(string)
		if name == "" {
			return name
		}
		return dir + "/" + name
	}
	num := func(i int) int { return args[i].(int) }
	switch call {
	case "mkdir":
		return result(unix.Mkdir(path(0), uint32(num(1))))
	case "create":
		fd, err := unix.Open(path(0), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, uint32(num(1)))
		if err == nil {
			unix.Close(fd)
		}
		return result(err)
	case "open":
		fd, err := unix.Open(path(0), num(1)|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o644)
		if err == nil {
			unix.Close(fd)
		}
		return result(err)
	case "write":
		fd, err := unix.Open(path(0), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return result(err)
		}
		_, err = unix.Write(fd, []byte(args[1].(string)))
		unix.Close(fd)
		return result(err)
	case "openwrite": // write through a descriptor whose file loses what it had
		fd, err := unix.Open(path(0), num(1)|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return result(err)
		}
		defer unix.Close(fd)
		uerr := unix.Unlink(path(0))
		_, err = unix.Write(fd, []byte("hello"))
		var st unix.Stat_t
		serr := unix.Fstat(fd, &st)
		return fmt.Sprint(result(uerr), result(err), result(serr), st.Nlink, st.Size)
	case "running": // something done to a program that runs
		return running(path(0), args[1].(string))
	case "sameparent":
		var up, parent unix.Stat_t
		err := unix.Stat(path(0)+"/..", &up)
		perr := unix.Stat(path(1), &parent)
		return fmt.Sprint(result(err), result(perr), up.Ino == parent.Ino)
	case "mknod":
		return result(unix.Mknod(path(0), uint32(num(1)), int(unix.Mkdev(1, 3))))
	case "symlink":
		return result(unix.Symlink(args[0].(string), path(1)))
	case "readlink":
		buf := make([]byte, 5000)
		n, err := unix.Readlink(path(0), buf)
		return result(err) + " " + string(buf[:max(n, 0)])
	case "link":
		return result(unix.Link(path(0), path(1)))
	case "unlink":
		return result(unix.Unlink(path(0)))
	case "rmdir":
		return result(unix.Rmdir(path(0)))
	case "rename":
		return result(unix.Rename(path(0), path(1)))
	case "rename2":
		return result(unix.Renameat2(unix.AT_FDCWD, path(0), unix.AT_FDCWD, path(1), uint(num(2))))
	case "chmod":
		return result(unix.Chmod(path(0), uint32(num(1))))
	case "chown":
		return result(unix.Chown(path(0), num(1), num(2)))
	case "lchown":
		return result(unix.Lchown(path(0), num(1), num(2)))
	case "truncate":
		return result(unix.Truncate(path(0), int64(num(1))))
	case "ftruncate":
		fd, err := unix.Open(path(0), num(1)|unix.O_CLOEXEC, 0)
		if err != nil {
			return result(err)
		}
		defer unix.Close(fd)
		return result(unix.Ftruncate(fd, int64(num(2))))
	case "utimens":
		ts := []unix.Timespec{{Sec: int64(num(1)), Nsec: int64(num(2))}, {Sec: int64(num(3)), Nsec: int64(num(4))}}
		return result(unix.UtimesNanoAt(unix.AT_FDCWD, path(0), ts, 0))
	case "access":
		return result(unix.Faccessat(unix.AT_FDCWD, path(0), uint32(num(1)), unix.AT_EACCESS))
	case "readdir":
		d, err := os.ReadDir(path(0))
		if err != nil {
			return result(err.(*os.PathError).Err)
		}
		return fmt.Sprint(d)
	case "stat":
		var st unix.Stat_t
		if err := unix.Lstat(path(0), &st); err != nil {
			return result(err)
		}
		nlink := st.Nlink
		text := fmt.Sprintf("%o %d:%d n=%d", st.Mode, st.Uid, st.Gid, nlink)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG, unix.S_IFLNK:
			text += fmt.Sprintf(" size=%d blocks=%d", st.Size, st.Blocks)
		case unix.S_IFCHR, unix.S_IFBLK:
			text += fmt.Sprintf(" rdev=%d", st.Rdev)
		}
		return text
	case "times":
		var st unix.Stat_t
		err := unix.Lstat(path(0), &st)
		return fmt.Sprint(result(err), st.Atim, st.Mtim)
	}
	panic(call)
}
