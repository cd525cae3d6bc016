// Command enemy is for tests: an allowed command that wants to be the agent. It tries everything against the processes
// whose ids are its arguments, or against all of other users, and prints what worked.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	pids := os.Args[1:]
	runtime.LockOSThread()
	named := len(pids) > 0
	if !named {
		pids = strangers()
	}
	fmt.Printf("against %d processes\n", len(pids))
	for _, s := range pids {
		pid, err := strconv.Atoi(s)
		if err != nil {
			fmt.Println("bad pid", s)
			continue
		}
		proc := filepath.Join("/proc", s)
		for name, try := range map[string]func() error{
			"ptrace attach": func() error { return unix.PtraceAttach(pid) },
			"ptrace seize":  func() error { return unix.PtraceSeize(pid) },
			"signal 0":      func() error { return unix.Kill(pid, 0) },
			"stop":          func() error { return unix.Kill(pid, unix.SIGSTOP) },
			"kill":          func() error { return unix.Kill(pid, unix.SIGKILL) },
			"mem":           func() error { return open(proc+"/mem", os.O_RDWR) },
			"environ":       func() error { return open(proc+"/environ", os.O_RDONLY) },
			"fd folder":     func() error { _, err := os.ReadDir(proc + "/fd"); return err },
			"fd 3":          func() error { return open(proc+"/fd/3", os.O_RDWR) },
			"fd 4":          func() error { return open(proc+"/fd/4", os.O_WRONLY) },
			"exe":           func() error { return open(proc+"/exe", os.O_RDONLY) },
			"root":          func() error { _, err := os.Stat(proc + "/root/."); return err },
			"auxv":          func() error { return open(proc+"/auxv", os.O_RDONLY) },
			"vm read": func() error {
				var b [8]byte
				_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: 8}},
					[]unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
				return err
			},
			"steal a descriptor": func() error {
				fd, err := unix.PidfdOpen(pid, 0)
				if err != nil {
					return err
				}
				_, err = unix.PidfdGetfd(fd, 4, 0)
				return err
			},
			"limits": func() error {
				return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: 1}, nil)
			},
			"affinity": func() error {
				var set unix.CPUSet
				set.Set(0)
				_, _, errno := unix.Syscall(unix.SYS_SCHED_SETAFFINITY, uintptr(pid), unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
				if errno != 0 {
					return errno
				}
				return nil
			},
			"oom score": func() error { return os.WriteFile(proc+"/oom_score_adj", []byte("1000"), 0) },
		} {
			if err := try(); err == nil {
				fmt.Printf("WORKED: %s on %d\n", name, pid)
			} else if named && errors.Is(err, unix.ESRCH) {
				fmt.Printf("WORKED: %d is gone\n", pid)
			}
		}
	}
	for _, try := range []func() error{
		func() error { return unix.Setuid(0) },
		func() error { return unix.Setresuid(990, 990, 990) },
		func() error { return unix.Setgroups([]int{0}) },
		func() error { return unix.Setgid(990) },
	} {
		if try() == nil {
			fmt.Println("WORKED: changed the user")
		}
	}
	for fd := 3; fd < 1024; fd++ {
		if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && !strings.Contains(name, "anon_inode") && !strings.HasPrefix(name, "/sys/fs/cgroup") { // this program's own
			fmt.Printf("WORKED: inherited %d, %s\n", fd, name)
		}
	}
	fmt.Println("attack over")
}

func open(name string, flags int) error {
	f, err := os.OpenFile(name, flags, 0)
	if err == nil {
		f.Close()
	}
	return err
}

// strangers lists the processes of other users.
func strangers() []string {
	var list []string
	stats, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range stats {
		var st unix.Stat_t
		if unix.Stat(name, &st) == nil && int(st.Uid) != os.Getuid() {
			list = append(list, filepath.Base(name))
		}
	}
	return list
}
