package exec

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// scriptsPath is put in front of every command's PATH.
const scriptsPath = "/.msb/scripts"

// command is a request with everything resolved: what the child gets.
type command struct {
	path   string
	argv   []string
	env    []string
	cwd    string
	user   Account
	limits []limit
	tty    bool
	rows   uint16
	cols   uint16
}

// resolve turns a request into a command. Its error is a *failure.
func (s *Service) resolve(r *agent.ExecRequestPayload) (*command, error) {
	spec := s.cfg.User
	if r.User != nil && strings.TrimSpace(*r.User) != "" {
		spec = *r.User
	}
	user, err := s.accounts.Lookup(spec)
	if err != nil {
		return nil, &failure{kind: agent.ExecOther, what: "exec session error", err: err}
	}
	c := &command{
		argv:   append([]string{r.Cmd}, r.Args...),
		cwd:    s.cfg.Cwd,
		user:   user,
		limits: limits(s.cfg.Rlimits, r.Rlimits),
		tty:    r.TTY,
		rows:   r.Rows,
		cols:   r.Cols,
	}
	if r.Cwd != nil && *r.Cwd != "" {
		c.cwd = *r.Cwd
	}
	if c.cwd == "" {
		c.cwd = "/"
	}
	c.env = environment(s.cfg.Env, r.Env, user)
	if strings.ContainsRune(strings.Join(c.argv, "")+c.cwd, 0) {
		return nil, &failure{kind: agent.ExecBadArgs, what: "exec session error", err: errNUL}
	}
	c.path, err = lookPath(r.Cmd, pathOf(c.env), c.cwd)
	if err != nil {
		return nil, spawnFailure(r.Cmd, r.TTY, err)
	}
	return c, nil
}

var errNUL = errors.New("the command holds a NUL byte")

// environment is base with the request's entries over it, HOME of the user unless the request sets it, and the scripts
// folder in front of PATH.
func environment(base, request []string, user Account) []string {
	env := make([]string, 0, len(base)+len(request)+4)
	at := make(map[string]int, len(base)+len(request)+4)
	set := func(key, entry string) {
		if i, ok := at[key]; ok {
			env[i] = entry
			return
		}
		at[key] = len(env)
		env = append(env, entry)
	}
	add := func(entries []string) {
		for _, e := range entries {
			if key, _, ok := strings.Cut(e, "="); ok && key != "" && strings.IndexByte(e, 0) < 0 {
				set(key, e)
			}
		}
	}
	add(base)
	set("HOME", "HOME="+user.Home)
	if user.Name != "" {
		set("USER", "USER="+user.Name)
		set("LOGNAME", "LOGNAME="+user.Name)
	}
	add(request)
	set("PATH", "PATH="+scriptsPath+":"+pathOf(env))
	return env
}

func pathOf(env []string) string {
	for _, e := range slices.Backward(env) {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			return p
		}
	}
	return ""
}

// lookPath finds cmd as execvp does: the first executable regular file on path, or cmd itself when it holds a slash.
// A file that is there and may not be executed is EACCES unless a later one may be.
func lookPath(cmd, path, cwd string) (string, error) {
	switch {
	case cmd == "":
		return "", unix.ENOENT
	case strings.Contains(cmd, "/"):
		return cmd, nil // relative to the child's cwd, as the kernel takes it
	case len(cmd) > unix.NAME_MAX:
		return "", unix.ENAMETOOLONG
	}
	failed := unix.ENOENT
	for dir := range strings.SplitSeq(path, ":") {
		p := filepath.Join(dir, cmd)
		if dir == "" || !filepath.IsAbs(dir) {
			p = filepath.Join(cwd, p)
		}
		var st syscall.Stat_t
		switch err := syscall.Stat(p, &st); {
		case err == unix.EACCES:
			failed = unix.EACCES
		case err != nil:
		case st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Mode&0o111 != 0:
			return p, nil
		default:
			failed = unix.EACCES
		}
	}
	return "", failed
}

// BaseEnv is the environment that commands start from: the default PATH, the console's TERM, and extra.
func BaseEnv(extra []agent.EnvVar) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if term := os.Getenv("TERM"); term != "" {
		env = append(env, "TERM="+term)
	} else {
		env = append(env, "TERM=linux")
	}
	for _, e := range extra {
		env = append(env, e.Key+"="+e.Value)
	}
	return env
}
