package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/fusefs"
	"msb/vmm/store"
)

const (
	mountLog       = "mount.log"     // in the sandbox's logs
	umountPatience = 5 * time.Second // for a mount's process to end
	mountPatience  = 30 * time.Second
)

// startMount starts the background process of a mount and returns when the mount can be used.
func startMount(ctx context.Context, app *app, t target, o mountOptions) error {
	h, err := app.home()
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	log, err := openMountLog(h, t)
	if err != nil {
		return err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	defer r.Close()
	args := append([]string{mountDaemon}, o.args()...)
	if t.own {
		args = append(args, "--name", t.name)
	} else {
		args = append(args, "--socket", t.socket, "--name", t.name)
	}
	cmd := exec.Command(exe, append(args, "--", o.path, dir)...)
	cmd.Dir = "/" // it must not keep any file system from being unmounted
	cmd.Env = homeEnv(h)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return awaitMount(ctx, cmd, r)
}

// awaitMount waits for the word of the process that mounts: "ok", or what went wrong.
func awaitMount(ctx context.Context, cmd *exec.Cmd, r *os.File) error {
	defer context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })()
	_ = r.SetReadDeadline(time.Now().Add(mountPatience))
	line, err := bufio.NewReader(io.LimitReader(r, 64<<10)).ReadString('\n')
	line = strings.TrimSpace(line)
	if line == "ok" {
		return cmd.Process.Release()
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // it takes away what it has mounted
	_ = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case line != "":
		text, uerr := strconv.Unquote(line)
		if uerr != nil {
			text = line
		}
		return errors.New(text)
	}
	return fmt.Errorf("mount: its process said nothing (%w): see `msb logs NAME --source mount`", err)
}

// homeEnv is our environment for a process that runs in another directory.
func homeEnv(h *store.Home) []string {
	return append(os.Environ(), h.Environ()...)
}

const maxMountLog = 1 << 20

// openMountLog opens the log of a sandbox's mounts; those of a sandbox that is not ours log in the home.
func openMountLog(h *store.Home, t target) (*os.File, error) {
	dir := filepath.Join(h.Root, "logs")
	if t.own {
		dir = h.LogsDir(t.name)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("mount log: %w", err)
	}
	path := filepath.Join(dir, mountLog)
	if st, err := os.Stat(path); err == nil && st.Size() > maxMountLog {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, fmt.Errorf("mount log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("mount log: %w", err)
	}
	return f, nil
}

// waitingProcs is how many processors of Go's a process that mostly waits in system calls should have.
const waitingProcs = 8

const mountDaemon = "mount-daemon"

// newMountDaemonCmd is the background process of a mount. It says "ok" or an error, quoted, on descriptor 3.
func newMountDaemonCmd(app *app) *cobra.Command {
	var o mountOptions
	var name, socket string
	cmd := &cobra.Command{
		Use:    mountDaemon + " PATH DIR",
		Short:  "Serve a mount",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.path, o.dir = args[0], args[1]
			ready := os.NewFile(3, "ready")
			syscall.CloseOnExec(3)
			// The terminal that the mount was made on may go away; it stays.
			signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			t, err := app.target(name, socket)
			if err == nil {
				t.name = name
				err = serveMount(ctx, app, t, o, func() {
					fmt.Fprintln(ready, "ok")
					ready.Close()
				})
			}
			if err != nil {
				fmt.Fprintln(ready, strconv.Quote(err.Error()))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "")
	cmd.Flags().StringVar(&socket, "socket", "", "")
	o.flags(cmd)
	return cmd
}

// serveMount serves a mount until somebody unmounts it or ctx ends. It calls ready when the mount can be used.
func serveMount(ctx context.Context, app *app, t target, o mountOptions, ready func()) error {
	h, err := app.home()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(app.io.Err, &slog.HandlerOptions{Level: slog.LevelInfo})).With("dir", o.dir, "pid", os.Getpid())
	// Most of its threads wait in the kernel, each with a processor of Go's that is taken away and looked for again when
	// there are few.
	runtime.GOMAXPROCS(max(waitingProcs, runtime.GOMAXPROCS(0)))
	fo, err := o.fuse()
	if err != nil {
		return err
	}
	fo.FsName, fo.Logger = "msb:"+t.name, log
	dial := func(ctx context.Context) (*agentclient.Client, error) { return t.dial(ctx) }
	if t.own {
		fo.Direct = func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", h.FilesSocket(t.name))
		}
	}
	server, err := fusefs.Mount(ctx, o.dir, dial, fo)
	if err != nil {
		return err
	}
	if t.own {
		if err := h.AddMount(t.name, store.Mount{Dir: server.Dir(), GuestPath: o.path}); err != nil {
			return errors.Join(err, server.Unmount())
		}
		defer h.RemoveMount(t.name, server.Dir())
	}
	log.Info("mounted", "sandbox", t.name, "path", o.path)
	if ready != nil {
		ready()
	}
	select {
	case <-server.Done():
		log.Info("unmounted")
		return nil
	case <-ctx.Done():
	}
	err = server.Unmount()
	log.Info("unmounted", "reason", "asked to end", "error", err)
	return err
}

// unmountAll takes away every mount of a sandbox and waits for the processes behind them. Without force a mount that
// stays in use stops it.
func unmountAll(ctx context.Context, h *store.Home, name string, force bool) error {
	all, err := h.Mounts(name)
	if err != nil {
		return err
	}
	var failed []error
	for _, m := range all {
		if err := fusefs.Unmount(m.Dir); err != nil && !errors.Is(err, fusefs.ErrNotMounted) {
			failed = append(failed, err)
			continue
		}
		if !waitForProcess(ctx, m.PID, m.Start, umountPatience) {
			// Programs still hold files of it; with the sandbox gone there is nothing to hold on to.
			_ = syscall.Kill(m.PID, syscall.SIGKILL)
			waitForProcess(ctx, m.PID, m.Start, umountPatience)
		}
	}
	if force {
		return nil
	}
	return errors.Join(failed...)
}

// reattachPatience is how long the mounts of a sandbox that has just started may take to come back: their processes
// look for it every second.
const reattachPatience = 5 * time.Second

// mountAnswers waits until the mount at dir answers, and says whether it does.
func mountAnswers(ctx context.Context, dir string) bool {
	ctx, cancel := context.WithTimeout(ctx, reattachPatience)
	defer cancel()
	answered := make(chan bool, 1)
	go func() { // a mount may take its time to fail
		for {
			_, err := os.ReadDir(dir)
			if ctx.Err() != nil || !errors.Is(err, syscall.ENOTCONN) {
				answered <- err == nil
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	select {
	case ok := <-answered:
		return ok
	case <-ctx.Done():
		return false
	}
}

// waitForProcess waits until a process has ended and says whether it has.
func waitForProcess(ctx context.Context, pid int, start uint64, patience time.Duration) bool {
	deadline := time.Now().Add(patience)
	for store.Alive(pid, start) {
		if ctx.Err() != nil || time.Now().After(deadline) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}
