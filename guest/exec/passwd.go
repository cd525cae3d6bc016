package exec

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Account is what a user name of a request comes to.
type Account struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
	Name     string   // "" when the uid has no passwd entry
	Home     string   // "/" when the uid has no passwd entry
}

// Accounts looks users up in /etc/passwd and /etc/group of the root file system. Answers are kept as long as the files
// do not change. Safe for concurrent use.
type Accounts struct {
	Root string // prefix of the two paths, "" = the process's root

	mu     sync.Mutex
	passwd table
	group  table
}

// maxTable bounds what is read of a user database that the guest's users may have written.
const maxTable = 4 << 20

// table is a colon-separated file, parsed when its identity changes.
type table struct {
	stamp  fileStamp
	fields [][]string
}

type fileStamp struct {
	ino   uint64
	size  int64
	mtime syscall.Timespec
	ctime syscall.Timespec
}

// Lookup resolves NAME|UID[:GROUP|GID]; blank means root. Its error is for the user.
func (a *Accounts) Lookup(spec string) (Account, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.passwd.load(a.Root+"/etc/passwd", 7); err != nil {
		return Account{}, err
	}
	if err := a.group.load(a.Root+"/etc/group", 4); err != nil {
		return Account{}, err
	}
	user, group, hasGroup := strings.Cut(strings.TrimSpace(spec), ":")
	if user == "" {
		user = "root"
	}
	acc, err := a.user(user, hasGroup)
	if err != nil {
		return Account{}, err
	}
	if hasGroup {
		if acc.GID, err = a.gid(group); err != nil {
			return Account{}, err
		}
	}
	acc.Groups = a.supplementary(acc)
	return acc, nil
}

func (a *Accounts) user(user string, hasGroup bool) (Account, error) {
	for _, f := range a.passwd.fields {
		if f[0] == user {
			return account(f)
		}
	}
	uid, err := strconv.ParseUint(user, 10, 32)
	switch {
	case err == nil && uid != 1<<32-1: // -1 means "unchanged" to the kernel
		for _, f := range a.passwd.fields {
			if f[2] == user {
				return account(f)
			}
		}
		// A bare uid without an entry runs with the group of the same number.
		return Account{UID: uint32(uid), GID: uint32(uid), Home: "/"}, nil
	case user == "root":
		return Account{Name: "root", Home: "/root"}, nil
	}
	return Account{}, fmt.Errorf("guest user not found: %s", user)
}

func account(f []string) (Account, error) {
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return Account{}, fmt.Errorf("guest user %s has a broken passwd entry", f[0])
	}
	home := f[5]
	if home == "" {
		home = "/"
	}
	return Account{UID: uint32(uid), GID: uint32(gid), Name: f[0], Home: home}, nil
}

func (a *Accounts) gid(group string) (uint32, error) {
	for _, f := range a.group.fields {
		if f[0] == group {
			gid, err := strconv.ParseUint(f[2], 10, 32)
			if err != nil {
				return 0, fmt.Errorf("guest group %s has a broken entry", group)
			}
			return uint32(gid), nil
		}
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil || gid == 1<<32-1 {
		return 0, fmt.Errorf("guest group not found: %s", group)
	}
	return uint32(gid), nil
}

// supplementary returns the groups that list the user, the primary one first.
func (a *Accounts) supplementary(acc Account) []uint32 {
	groups := []uint32{acc.GID}
	if acc.Name == "" {
		return groups
	}
	for _, f := range a.group.fields {
		for member := range strings.SplitSeq(f[3], ",") {
			if member != acc.Name {
				continue
			}
			if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && uint32(gid) != acc.GID {
				groups = append(groups, uint32(gid))
			}
			break
		}
	}
	return groups
}

// load reads the file if it changed. A missing file is an empty table.
func (t *table) load(path string, width int) error {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		*t = table{}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("read %s: %w", path, err)
	}
	stamp := fileStamp{ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
	if stamp == t.stamp {
		return nil
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Size > maxTable {
		return fmt.Errorf("read %s: not a regular file of at most %d bytes", path, maxTable)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	t.stamp, t.fields = stamp, nil
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) >= width && f[0] != "" && f[0][0] != '#' {
			t.fields = append(t.fields, f)
		}
	}
	return nil
}
