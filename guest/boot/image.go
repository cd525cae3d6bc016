package boot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The user that commands, shells and mounts are by default.
const (
	devUser = "dev"
	devID   = 1000
	devHome = "/home/dev"
)

// The user that the agent of a turn session runs as. Nobody logs in as it. Where the number is somebody else's, the
// agent finds another one for itself.
const (
	turnUser = "msb-turn"
	turnID   = 990
)

// maxText bounds what is read of an image's own configuration files.
const maxText = 4 << 20

// finishImage gives an unpacked image what a sandbox expects of it. It runs with the image as root directory.
func finishImage() error {
	for _, d := range []struct {
		path string
		mode uint32
	}{
		{"/dev", 0o755}, {"/etc", 0o755}, {"/home", 0o755}, {heartbeatDir, 0o755}, {"/proc", 0o555}, {"/root", 0o700},
		{"/run", 0o755}, {"/sys", 0o555}, {"/tmp", 0o1777}, {"/var", 0o755}, {"/var/tmp", 0o1777},
	} {
		if err := ensureDir(d.path, d.mode); err != nil {
			return fmt.Errorf("folder %s: %w", d.path, err)
		}
	}
	if err := ensureUsers(); err != nil {
		return err
	}
	if err := ensureHome(); err != nil {
		return fmt.Errorf("home of %s: %w", devUser, err)
	}
	for _, f := range []struct{ path, text string }{
		{"/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
		{"/etc/hostname", "sandbox\n"},
		{"/etc/resolv.conf", "nameserver 10.0.2.3\n"},
	} {
		if err := ensureText(f.path, f.text); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
	}
	// Two machines of one image are two machines.
	if _, err := readText("/etc/machine-id"); err == nil {
		if err := replaceFile("/etc/machine-id", nil, 0o444); err != nil {
			return fmt.Errorf("/etc/machine-id: %w", err)
		}
	}
	return nil
}

// ensureDir makes a folder. What is there and is no folder gives way; a link to a folder stays.
func ensureDir(path string, mode uint32) error {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if unix.Lstat(path, &st) == nil {
		if err := unix.Unlink(path); err != nil {
			return err
		}
	}
	if err := unix.Mkdir(path, mode); err != nil {
		return err
	}
	return unix.Chmod(path, mode)
}

// readText reads a regular file of the image. Links are followed inside the image; nothing is waited for.
func readText(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxText {
		return nil, fmt.Errorf("not a regular file of at most %d bytes", maxText)
	}
	return io.ReadAll(io.LimitReader(f, maxText))
}

// ensureText writes a file unless there is one with something in it.
func ensureText(path, text string) error {
	if b, err := readText(path); err == nil && len(bytes.TrimSpace(b)) > 0 {
		return nil
	}
	return replaceFile(path, []byte(text), 0o644)
}

// ensureUsers adds the entries that must be there to the user databases.
func ensureUsers() error {
	shell := "/bin/sh"
	// Not access(2): nothing is executable on this mount.
	var st unix.Stat_t
	if unix.Stat("/bin/bash", &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 {
		shell = "/bin/bash"
	}
	for _, f := range []struct {
		path    string
		mode    os.FileMode
		make    bool // even if the image has no such file
		entries []string
	}{
		{"/etc/passwd", 0o644, true, []string{
			"root:x:0:0:root:/root:" + shell,
			fmt.Sprintf("%s:x:%d:%d::%s:%s", devUser, devID, devID, devHome, shell),
			fmt.Sprintf("%s:x:%d:%d::/nonexistent:/bin/false", turnUser, turnID, turnID),
		}},
		{"/etc/group", 0o644, true, []string{
			"root:x:0:", fmt.Sprintf("%s:x:%d:", devUser, devID), fmt.Sprintf("%s:x:%d:", turnUser, turnID),
		}},
		{"/etc/shadow", 0o640, false, []string{
			"root:*:19000:0:99999:7:::", devUser + ":!:19000:0:99999:7:::", turnUser + ":!:19000:0:99999:7:::",
		}},
		{"/etc/gshadow", 0o640, false, []string{"root:*::", devUser + ":!::", turnUser + ":!::"}},
	} {
		old, err := readText(f.path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		if err != nil && !f.make {
			continue
		}
		if err := addEntries(f.path, f.mode, old, f.entries); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
	}
	return nil
}

// addEntries appends the entries whose name the database does not have. Owner and mode of the file stay.
func addEntries(path string, mode os.FileMode, old []byte, entries []string) error {
	known, taken := make(map[string]bool), make(map[string]bool)
	for line := range strings.Lines(string(old)) {
		name, rest, _ := strings.Cut(line, ":")
		known[name] = true
		if f := strings.SplitN(rest, ":", 3); len(f) > 1 {
			taken[f[1]] = true
		}
	}
	text := old
	for _, e := range entries {
		name, _, _ := strings.Cut(e, ":")
		if known[name] || (name == turnUser && taken[strconv.Itoa(turnID)]) {
			continue
		}
		if len(text) > 0 && text[len(text)-1] != '\n' {
			text = append(text, '\n')
		}
		text = append(text, e+"\n"...)
	}
	if len(text) == len(old) {
		return nil
	}
	var st unix.Stat_t
	kept := unix.Stat(path, &st) == nil
	if kept {
		mode = os.FileMode(st.Mode & 0o777)
	}
	if err := replaceFile(path, text, mode); err != nil {
		return err
	}
	if kept {
		return unix.Lchown(path, int(st.Uid), int(st.Gid))
	}
	return nil
}

// ensureHome makes the home of the default user, if the image's entry for that user has it where it is expected.
func ensureHome() error {
	var st unix.Stat_t
	if unix.Stat(devHome, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	uid, gid := devIDs()
	if err := ensureDir(devHome, 0o755); err != nil {
		return err
	}
	names, _ := filepath.Glob("/etc/skel/.[a-z]*")
	for _, n := range names {
		b, err := readText(n)
		if err != nil {
			continue
		}
		to := filepath.Join(devHome, filepath.Base(n))
		if err := replaceFile(to, b, 0o644); err != nil {
			return err
		}
		if err := unix.Lchown(to, uid, gid); err != nil {
			return err
		}
	}
	return unix.Lchown(devHome, uid, gid)
}

// devIDs are the default user's numbers in the image, which may have had that user before.
func devIDs() (uid, gid int) {
	uid, gid = devID, devID
	b, err := readText("/etc/passwd")
	if err != nil {
		return uid, gid
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, devUser+":") {
			_, _ = fmt.Sscanf(strings.Join(append(strings.Split(line, ":"), "", "", "")[2:4], " "), "%d %d", &uid, &gid)
			break
		}
	}
	return uid, gid
}
