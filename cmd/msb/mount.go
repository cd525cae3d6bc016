package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"msb/fusefs"
)

func newMountCmd(app *app) *cobra.Command {
	var o mountOptions
	var socket string
	cmd := &cobra.Command{
		Use:   "mount NAME[:/path] DIR",
		Short: "Mount a sandbox's files on this host",
		Long: `Show a directory of a sandbox at DIR, for your editor, git and everything else. Without a
path it is the workspace (/work/repo) if there is one, else /home/dev. A background process
serves the mount; it outlives the sandbox, comes back with it, and ends at msb umount.`,
		Example: `  msb mount demo ~/demo
  msb mount demo:/etc /mnt --read-only
  msb mount --socket /run/other/agent.sock :/home ~/other
  sudo mount -t fuse.msb demo:/work/repo /mnt -o allow_other`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 && socket == "" {
				return app.names(begin, nil), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: interruptible(func(ctx context.Context, args []string) error {
			if err := o.resolve(); err != nil {
				return err
			}
			var what string
			switch {
			case len(args) == 2:
				what, o.dir = args[0], args[1]
			case socket != "":
				o.dir = args[0]
			default:
				return &usageError{errors.New("where? msb mount NAME DIR")}
			}
			if o.dir == "" {
				return &usageError{errors.New("where? the directory to mount at is empty: msb mount NAME DIR")}
			}
			name, path, _ := strings.Cut(what, ":")
			if socket != "" && name != "" {
				return &usageError{fmt.Errorf("%s: with --socket give :/path, not a name", what)}
			}
			t, err := app.target(name, socket)
			if err != nil {
				return err
			}
			if path != "" && !strings.HasPrefix(path, "/") {
				return &usageError{fmt.Errorf("%s: the path in a sandbox must begin with a slash", what)}
			}
			if o.path = path; path == "" {
				if o.path, err = defaultMountPath(ctx, t); err != nil {
					return err
				}
			}
			if o.foreground {
				return serveMount(ctx, app, t, o, nil)
			}
			return startMount(ctx, app, t, o)
		}),
	}
	socketFlag(cmd, &socket)
	o.flags(cmd)
	cmd.Flags().BoolVar(&o.foreground, "foreground", false, "serve it in this process until it is unmounted or Ctrl-C")
	return cmd
}

func newUmountCmd(app *app) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:     "umount DIR...",
		Aliases: []string{"unmount"},
		Short:   "Take a mount away",
		Long: `Take mounts of sandboxes away. One that is still in use goes out of sight at once and ends when
the last file in it is closed. Works whether the sandbox runs or not.`,
		Example: "  msb umount ~/msb/demo",
		Args:    cobra.MinimumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
			return app.mountPoints(begin), cobra.ShellCompDirectiveFilterDirs
		},
		RunE: interruptible(func(ctx context.Context, args []string) error {
			h, err := app.home()
			if err != nil {
				return err
			}
			var failed []error
			for _, dir := range args {
				if dir == "" {
					failed = append(failed, &usageError{errors.New("which mount? the directory is empty")})
					continue
				}
				_, m, known := h.FindMount(mountPoint(dir))
				if err := fusefs.Unmount(dir); err != nil {
					failed = append(failed, err)
					continue
				}
				if known && !waitForProcess(ctx, m.PID, m.Start, umountPatience) && !quiet {
					app.steps(false).Warn("mount", "%s: out of sight, but still in use by a program", dir)
				}
			}
			return errors.Join(failed...)
		}),
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing but errors")
	return cmd
}

// mountPoint is how the store knows the mount at dir: absolute, its parent resolved, dir itself not looked at since
// its sandbox may be gone.
func mountPoint(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		return filepath.Join(parent, filepath.Base(abs))
	}
	return abs
}

func (a *app) mountPoints(begin string) []string {
	h, err := a.home()
	if err != nil {
		return nil
	}
	var dirs []string
	for _, n := range a.names("", nil) {
		all, err := h.Mounts(n)
		if err != nil {
			continue
		}
		for _, m := range all {
			if strings.HasPrefix(m.Dir, begin) {
				dirs = append(dirs, m.Dir)
			}
		}
	}
	return dirs
}
