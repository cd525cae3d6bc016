package warden

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"msb/guest/exec"
)

// turnID is the number of msb-turn where images have no entry for it, or the first free one below.
const turnID = 990

// users is who is who.
type users struct {
	turn  exec.Account // the agent
	owner exec.Account // commands and files of the workspace
}

// lookupUsers finds the two users. Images that are not ours may have neither: the agent then takes a number that
// nobody has, and the owner is whoever owns the workspace, or the first ordinary user's number.
func lookupUsers(repo string) (users, error) {
	var accounts exec.Accounts
	var u users
	var err error
	if u.owner, err = accounts.Lookup(ownerName); err != nil || u.owner.UID == 0 {
		id := uint32(1000)
		var st unix.Stat_t
		if unix.Stat(repo, &st) == nil && st.Uid != 0 {
			id = st.Uid
		}
		if u.owner, err = accounts.Lookup(strconv.Itoa(int(id))); err != nil {
			return u, err
		}
	}
	if u.turn, err = accounts.Lookup(UserName); err == nil && u.turn.UID != 0 && u.turn.UID != u.owner.UID {
		return u, nil
	}
	for id := turnID; id > 100; id-- {
		a, err := accounts.Lookup(strconv.Itoa(id))
		if err != nil {
			return u, err
		}
		if a.Name == "" && a.UID != u.owner.UID {
			u.turn = a
			return u, nil
		}
	}
	return u, errors.New("there is no free user number for the agent below 990")
}

// prepareState makes the folder that holds a session's conversation, which only the agent can enter.
func prepareState(base, session string, agent exec.Account) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("make a folder for the session in %s: %w", base, err)
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return fail(err)
	}
	if !onlyRoot(base) {
		return fail(errors.New("others than root can write to it or above it"))
	}
	dir := filepath.Join(base, session)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fail(err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Fchown(fd, int(agent.UID), int(agent.GID)), unix.Fchmod(fd, 0o700)); err != nil {
		return fail(err)
	}
	// The number of msb-turn may have changed since the last start.
	names, err := os.ReadDir(dir)
	if err != nil {
		return fail(err)
	}
	for _, n := range names {
		_ = unix.Fchownat(fd, n.Name(), int(agent.UID), int(agent.GID), unix.AT_SYMLINK_NOFOLLOW)
	}
	return dir, nil
}

// prepareRepo makes the workspace's folder where only root could. Elsewhere the owner makes it.
func prepareRepo(dir string, owner exec.Account) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(existing(parent), 0o755); err != nil {
		return nil
	}
	if !onlyRoot(existing(parent)) {
		return nil // somebody could swap what is made here; the owner tries
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("make the workspace %s: %w", dir, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make the workspace %s: %w", dir, err)
	}
	return os.Lchown(dir, int(owner.UID), int(owner.GID))
}

// existing is the nearest folder at or above dir that is there.
func existing(dir string) string {
	for {
		if _, err := os.Lstat(dir); err == nil || dir == "/" {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// onlyRoot tells that nobody but root can change what a path leads to: no part is a link or writable by others.
func onlyRoot(dir string) bool {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// credentials is the beginning of a status file of the process file system, for checks.
func credentials(task string) (uids, effective, permitted string, err error) {
	b, err := os.ReadFile(filepath.Join(task, "status"))
	if err != nil {
		return "", "", "", err
	}
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":\t"))
		switch string(key) {
		case "Uid":
			uids = string(value)
		case "CapEff":
			effective = string(value)
		case "CapPrm":
			permitted = string(value)
		}
	}
	return uids, effective, permitted, nil
}
