package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/cmd/msb/progress"
	"msb/protocol/agent"
	"msb/turn/workspace"
	"msb/vmm"
	"msb/vmm/store"
)

// upOptions are the flags of up.
type upOptions struct {
	machine machine
	image   string
	dir     string
	noMount bool
	noShell bool
	shell   bool // in place of the screen
	project workspaceOptions
}

func newUpCmd(app *app) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up [NAME]",
		Short: "Create or start a sandbox, mount it and open it on the screen",
		Long: `Bring a sandbox up: build what is missing, create or start it, mount its files at ~/msb/NAME
(~/msb-NAME when ~/msb is a project of yours) and open the screen, or with --shell a shell. NAME is made from the current folder's name when it is not given. Without a
terminal, up says what it did and where the files are. It can be run again at any time.`,
		Example:           "  msb up\n  msb up demo\n  msb up --workspace .\n  msb up small --image tiny -m 256M",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: app.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.project.check(); err != nil {
				return err
			}
			o.machine.name = firstArg(args)
			if o.machine.name == "" {
				var err error
				if o.machine.name, err = folderName(); err != nil {
					return err
				}
			}
			return bringUp(cmd, app, &o)
		},
	}
	cmd.Flags().StringVar(&o.image, "image", "", "image of a new sandbox (default debian)")
	cmd.Flags().StringVar(&o.dir, "mount", "", "where to mount it (default ~/msb/NAME)")
	cmd.Flags().BoolVar(&o.noMount, "no-mount", false, "do not mount it")
	cmd.Flags().BoolVar(&o.noShell, "no-shell", false, "do not open the screen or a shell")
	cmd.Flags().BoolVar(&o.shell, "shell", false, "open a shell in place of the screen")
	_ = cmd.RegisterFlagCompletionFunc("image", func(_ *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
		return app.imageNames(begin), cobra.ShellCompDirectiveNoFileComp
	})
	_ = cmd.MarkFlagDirname("mount")
	o.project.flags(cmd)
	o.machine.flags(app, cmd)
	o.machine.processFlags(cmd)
	return cmd
}

// folderName makes a sandbox's name from the current folder's.
func folderName() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("current folder: %w; give a NAME", err)
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.', r == '_':
			return r
		}
		return '-'
	}, filepath.Base(dir))
	name = strings.Trim(name, "-._")
	if len(name) > store.MaxName {
		name = strings.TrimRight(name[:store.MaxName], "-._")
	}
	if store.ValidateName(name) != nil {
		return "", &usageError{fmt.Errorf("the folder %s gives no name for a sandbox: msb up NAME", dir)}
	}
	return name, nil
}

// firstQuestion stands ready on the screen of a sandbox in which nothing was asked yet.
const firstQuestion = "Show me around"

func bringUp(cmd *cobra.Command, app *app, o *upOptions) error {
	steps := progress.New(app.io, app.io.Out, app.io.OutTTY(), o.machine.quiet)
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := prepare(ctx, app, o, steps)
	steps.End()
	if err == nil {
		err = ctx.Err()
	}
	stop()
	if err != nil {
		return err
	}
	if o.noShell || !app.io.Interactive() {
		return nil
	}
	if !o.shell {
		return app.openScreen(cmd.Context(), o.machine.name, false, firstQuestion)
	}
	t, err := app.target(o.machine.name, "")
	if err != nil {
		return err
	}
	err = app.openShell(cmd, t, noFlags())
	var e *exitError
	if errors.As(err, &e) && e.err == nil {
		return nil // how the last command in the shell ended says nothing about up
	}
	return err
}

// prepare brings the sandbox to run and mounts it. When ctx ends at any moment, what is there is complete: the next up
// goes on from it.
func prepare(ctx context.Context, app *app, o *upOptions, steps *progress.Steps) error {
	sb, err := runningSandbox(ctx, app, o, steps)
	if err == nil && o.project.dir != "" {
		err = app.bringWorkspace(ctx, sb.Name, o.project, steps)
	}
	if err != nil || o.noMount {
		return err
	}
	dir, err := upDir(o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	path, err := mountUp(ctx, app, sb, dir)
	if err != nil {
		return err
	}
	steps.Line("mount", "%s  ->  %s:%s", tilde(dir), sb.Name, path)
	switch {
	case o.noShell || !app.io.Interactive():
		steps.More("open it in your editor; `msb shell %s` opens a shell", sb.Name)
	case o.shell:
		steps.More("open it in your editor; Ctrl-] leaves the shell, the sandbox keeps running")
	default:
		steps.More("open it in your editor; Ctrl-] leaves the screen, the sandbox keeps running")
	}
	return nil
}

// runningSandbox returns the sandbox, running: created, started, or found so.
func runningSandbox(ctx context.Context, app *app, o *upOptions, steps *progress.Steps) (vmm.Sandbox, error) {
	h, err := app.host()
	if err != nil {
		return vmm.Sandbox{}, err
	}
	name := o.machine.name
	if err := store.ValidateName(name); err != nil {
		return vmm.Sandbox{}, &usageError{err}
	}
	sb, err := h.Inspect(ctx, name)
	switch {
	case errors.Is(err, vmm.ErrNotFound):
		return createSandbox(ctx, app, &o.machine, o.image, steps)
	case err != nil:
		return sb, err
	case sb.State == store.Running:
		steps.Line("sandbox", "%s: is running", name)
		return sb, nil
	}
	if o.image != "" && o.image != sb.Image {
		steps.Warn("sandbox", "%s: exists and was made from %s; --image is for a new one", name, sb.Image)
	}
	return startSandbox(ctx, h, name, steps)
}

func upDir(o *upOptions) (string, error) {
	if o.dir != "" {
		return o.dir, nil
	}
	dir, err := defaultUpDir(o.machine.name)
	if err != nil {
		return "", fmt.Errorf("mount: %w; use --mount DIR", err)
	}
	return dir, nil
}

// defaultUpDir is where up mounts a sandbox when it is told no other place.
func defaultUpDir(name string) (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(home, "msb")
	if isWorkTree(dir) {
		return filepath.Join(home, "msb-"+name), nil
	}
	return filepath.Join(dir, name), nil
}

// isWorkTree tells whether dir is somebody's project, such as a clone of msb in ~/msb. Nothing is mounted in there by
// itself: git would list and clean the guest's files, and `go test ./...` would run what the guest wrote, on this host.
func isWorkTree(dir string) bool {
	for _, name := range []string{".git", "go.mod"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// mountUp mounts the sandbox at dir unless it is already, and returns what is mounted.
func mountUp(ctx context.Context, app *app, sb vmm.Sandbox, dir string) (string, error) {
	h, err := app.home()
	if err != nil {
		return "", err
	}
	if name, m, ok := h.FindMount(mountPoint(dir)); ok {
		if name == sb.Name {
			return m.GuestPath, nil
		}
		return "", fmt.Errorf("%s shows sandbox %q: `msb umount %s`, or use --mount DIR", dir, name, dir)
	}
	// A dead mount at dir makes that "exists", and mounting cleans it.
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("mount point: %w", err)
	}
	t := target{name: sb.Name, socket: sb.AgentSocket, own: true}
	path, err := defaultMountPath(ctx, t)
	if err != nil {
		return "", err
	}
	return path, startMount(ctx, app, t, mountOptions{path: path, dir: dir})
}

// defaultMountPath is what a mount without a path shows: the workspace if there is one, else the user's home.
func defaultMountPath(ctx context.Context, t target) (string, error) {
	c, err := t.dial(ctx)
	if err != nil {
		return "", err
	}
	defer c.Close()
	for _, p := range []string{workspace.Root, "/home/dev"} {
		if isDir(ctx, c.FS(), p) {
			return p, nil
		}
	}
	return "/", nil
}

func isDir(ctx context.Context, f *agentclient.FS, p string) bool {
	e, err := f.Stat(ctx, p, true)
	return err == nil && e.Kind == agent.KindDir
}

// tilde shortens a path in the user's home.
func tilde(p string) string {
	if home, err := os.UserHomeDir(); err == nil {
		if rest, ok := strings.CutPrefix(p, home+"/"); ok {
			return "~/" + rest
		}
	}
	return p
}
