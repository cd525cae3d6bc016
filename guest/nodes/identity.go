package nodes

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// maxGroups bounds the groups of an identity; Linux takes 65536.
const maxGroups = 1024

// identity is who system calls are made as.
type identity struct {
	uid, gid   uint32
	groups     []uint32
	privileged bool
}

// identityOf returns nil for what the service is anyway.
func identityOf(as *agent.NodeIdentity) *identity {
	if as.UID == 0 && as.GID == 0 && (len(as.Groups) == 0 || as.Privileged) {
		return nil
	}
	return &identity{as.UID, as.GID, as.Groups, as.Privileged}
}

// threadRoot is the identity that threads go back to.
type threadRoot struct {
	gid    uint32
	groups []uint32
}

func (t *threadRoot) init() {
	t.gid = uint32(os.Getegid())
	groups, _ := unix.Getgroups() // never fails with enough room
	for _, g := range groups {
		t.groups = append(t.groups, uint32(g))
	}
}

// run calls f with the thread's identity for files changed. f must not block on anything but the system.
func (id *identity) run(root *threadRoot, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := id.enter()
	if err == nil {
		err = f()
	}
	root.restore()
	return err
}

// enter changes the thread. Giving up uid 0 gives up root's permissions on files with it.
func (id *identity) enter() error {
	if err := setGroups(id.groups); err != nil {
		return err
	}
	if !setID(unix.SYS_SETFSGID, id.gid) || !setID(unix.SYS_SETFSUID, id.uid) {
		return unix.EPERM
	}
	if id.privileged && id.uid != 0 {
		return raiseCapabilities()
	}
	return nil
}

// restore makes the thread root again: the kernel gives the permissions back with uid 0. It goes on until it has
// succeeded, as this thread serves others next.
func (t *threadRoot) restore() {
	for !setID(unix.SYS_SETFSUID, 0) || !setID(unix.SYS_SETFSGID, t.gid) || setGroups(t.groups) != nil {
		time.Sleep(time.Millisecond) // no memory for the groups; nothing else can fail for root
	}
}

// setID changes a file system id of the thread and tells whether it is what it should be: the call itself does not.
func setID(call uintptr, id uint32) bool {
	_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0)
	now, _, _ := unix.RawSyscall(call, ^uintptr(0), 0, 0)
	return uint32(now) == id
}

func setGroups(groups []uint32) error {
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0); errno != 0 {
		return errno
	}
	return nil
}

// raiseCapabilities makes everything effective that the thread may have.
func raiseCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	for i := range data {
		data[i].Effective = data[i].Permitted
	}
	return unix.Capset(&head, &data[0])
}

// maker runs system calls that make files, on threads without a umask: the mode of a new file is the request's, and
// where the directory has a default ACL, that ACL's.
type maker struct {
	mask uint32 // the umask of the process
	jobs chan func()
	idle chan struct{} // permits to start another thread
}

// makers bounds the threads.
const makers = 4

func (m *maker) init() {
	m.mask = uint32(processUmask())
	m.jobs = make(chan func())
	m.idle = make(chan struct{}, makers)
}

// run calls f where no umask takes anything from mode.
func (m *maker) run(mode uint32, f func() error) error {
	if mode&m.mask == 0 {
		return f()
	}
	done := make(chan error, 1)
	job := func() { done <- f() }
	select {
	case m.jobs <- job:
		return <-done
	default:
	}
	select {
	case m.jobs <- job:
	case m.idle <- struct{}{}:
		go m.serve(job)
	}
	return <-done
}

// serve is a thread's life.
func (m *maker) serve(job func()) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_FS); err == nil {
		unix.Umask(0)
	}
	job()
	for job := range m.jobs {
		job()
	}
}

func (m *maker) close() { close(m.jobs) }

// processUmask reads the umask without changing it: this thread's, as the one that /proc/self shows may be a maker's.
func processUmask() int {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0o777
	}
	_, line, ok := strings.Cut(string(b), "\nUmask:")
	line, _, _ = strings.Cut(line, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 8, 32)
	if !ok || err != nil {
		return 0o777
	}
	return int(mask)
}
