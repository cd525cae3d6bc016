package mcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a server that runs on the host. It has its own process group,
// which ends with it, and dies with this process.
type process struct {
	in, out *os.File // its stdin and stdout
	stderr  *tail
	group   int
	exited  chan struct{}
	once    sync.Once
}

// grace is how long a process may take to end after its stdin is closed, and
// again after SIGTERM.
const grace = 2 * time.Second

// start starts the server's program.
func (s *server) start(ctx context.Context, known *secrets) (*process, error) {
	argv := append([]string{s.conf.Command}, s.conf.Args...)
	if s.conf.Builtin() {
		self := s.b.o.Self
		if len(self) == 0 {
			exe, err := os.Executable()
			if err != nil {
				return nil, fmt.Errorf("the built-in server: %w", err)
			}
			self = []string{exe}
		}
		argv = append(slices.Clone(self), s.conf.Args...)
	}
	home, _ := os.UserHomeDir() // none: as it is
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = s.conf.Dir
	if rest, ok := strings.CutPrefix(cmd.Dir, "~"); ok && (rest == "" || rest[0] == '/') {
		cmd.Dir = home + rest
	}
	if cmd.Dir == "" {
		cmd.Dir = home
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}
	for name, value := range s.conf.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	for name, ref := range s.conf.SecretEnv {
		secret, err := s.b.o.Credentials.Resolve(ctx, ref)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		known.add(secret)
		cmd.Env = append(cmd.Env, name+"="+secret.Reveal())
	}
	return s.run(cmd)
}

func (s *server) run(cmd *exec.Cmd) (p *process, err error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		childIn.Close()
		in.Close()
		return nil, err
	}
	p = &process{in: in, out: out, stderr: &tail{}, exited: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = childIn, childOut, p.stderr
	cmd.WaitDelay = time.Second // a child of it may keep stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	s.b.work.Go(func() {
		// The kernel sends the parent-death signal when the thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		childIn.Close()
		childOut.Close()
		if err == nil {
			p.group = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		_ = syscall.Kill(-p.group, syscall.SIGKILL) // what it left behind
		s.log.Debug("MCP server process ended", "err", err, "stderr", len(p.stderr.String()))
		close(p.exited)
	})
	if err := <-started; err != nil {
		in.Close()
		out.Close()
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("the program %s is not installed, or not in PATH", cmd.Path)
		}
		return nil, fmt.Errorf("start the server: %w", err)
	}
	return p, nil
}

// stop ends the process and all of its group: first its stdin is closed, then
// it gets SIGTERM, then SIGKILL.
func (p *process) stop() {
	p.once.Do(func() {
		p.in.Close()
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			select {
			case <-p.exited:
				p.out.Close()
				return
			case <-time.After(grace):
			}
			_ = syscall.Kill(-p.group, sig) // ESRCH: it is gone
		}
		<-p.exited
		p.out.Close()
	})
}

// tail keeps the end of what a process wrote on its stderr.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const maxTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	keep := p[max(0, len(p)-maxTail):]
	t.b = append(t.b, keep...)
	if extra := len(t.b) - maxTail; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(p), nil
}

// String is the end of the output, safe to show in one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.b), "\uFFFD"))
	if text == "" {
		return ""
	}
	return fmt.Sprintf("%q", text)
}
