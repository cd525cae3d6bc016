package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/cmd/msb/progress"
	"msb/turn/visible"
	"msb/turn/workspace"
	"msb/vmm/store"
)

// workspaceOptions say which project comes into a sandbox.
type workspaceOptions struct {
	dir       string
	noHistory bool
	replace   bool
}

func (o *workspaceOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.dir, "workspace", "", "bring this project into the sandbox, to "+workspace.Root)
	f.BoolVar(&o.noHistory, "no-history", false, "of a git repository bring only the commit that is checked out")
	f.BoolVar(&o.replace, "replace-workspace", false, "bring it again; what is in "+workspace.Root+" is lost")
	_ = cmd.MarkFlagDirname("workspace")
}

func (o *workspaceOptions) check() error {
	if o.dir == "" && (o.noHistory || o.replace) {
		return &usageError{errors.New("--no-history and --replace-workspace are about a --workspace DIR")}
	}
	return nil
}

// workspaceDir is where the host's side of a sandbox's workspace is kept.
func workspaceDir(h *store.Home, name string) string {
	return filepath.Join(h.SandboxDir(name), "workspace")
}

// ownSandbox finds a sandbox of ours, which may be stopped.
func (a *app) ownSandbox(name string) (*store.Home, error) {
	if err := store.ValidateName(name); err != nil {
		return nil, &usageError{err}
	}
	h, err := a.home()
	if err != nil {
		return nil, err
	}
	if !h.Exists(name) {
		return nil, unknownSandbox(name)
	}
	return h, nil
}

// inWorkspace connects to a running sandbox and its workspace.
func (a *app) inWorkspace(ctx context.Context, name string, do func(w *workspace.Workspace, c *agentclient.Client) error) error {
	h, err := a.ownSandbox(name)
	if err != nil {
		return err
	}
	c, err := target{name: name, socket: h.AgentSocket(name), own: true}.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(workspace.At(workspaceDir(h, name)), c)
}

// bringWorkspace brings a project into a running sandbox, unless it is there.
func (a *app) bringWorkspace(ctx context.Context, name string, o workspaceOptions, steps *progress.Steps) error {
	return a.inWorkspace(ctx, name, func(w *workspace.Workspace, c *agentclient.Client) error {
		step := steps.Start("project", "reading %s", tilde(o.dir))
		b, err := w.Bring(ctx, c, o.dir, workspace.Options{NoHistory: o.noHistory, Replace: o.replace, Progress: func(files int, bytes int64) {
			if steps.Live() {
				step.Update(fmt.Sprintf("%s files, %s", thousands(files), progress.Bytes(bytes)), -1)
			}
		}})
		step.Drop()
		abs, _ := filepath.Abs(o.dir)
		switch {
		case errors.Is(err, workspace.ErrExists):
			steps.Line("project", "%s:%s is there, from %s", name, workspace.Root, tilde(b.Source))
			if b.Source != abs && !strings.HasPrefix(abs, b.Source+"/") {
				steps.Warn("project", "%s was not brought in: --replace-workspace does that, and loses what is there", tilde(abs))
			}
			return nil
		case errors.Is(err, workspace.ErrOccupied):
			return fmt.Errorf("%w; --replace-workspace removes it", err)
		case err != nil:
			return err
		}
		steps.Line("project", "%s  ->  %s:%s  (%s files, %s%s)", tilde(b.Source), name, workspace.Root, thousands(b.Files), progress.Bytes(b.Bytes), history(b, o))
		for i, s := range b.Skipped {
			if i == 5 {
				steps.Warn("project", "and %d more were left out", len(b.Skipped)-i)
				break
			}
			steps.Warn("project", "left out %s: %s", visible.Text(s.Path), visible.Text(s.Why))
		}
		return nil
	})
}

func history(b workspace.Baseline, o workspaceOptions) string {
	switch {
	case b.Kind != workspace.KindGit || b.Head == "":
		return ""
	case o.noHistory:
		return ", no history"
	}
	return ", with its history"
}

// thousands is a number with its thousands apart.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// outColour says whether standard output may have colour.
func (a *app) outColour() bool {
	return a.io.OutTTY() && a.io.Env("NO_COLOR") == "" && a.io.Env("TERM") != "dumb"
}

// writeChanges writes what a patch does, a line a file.
func writeChanges(w io.Writer, s workspace.Summary, colour bool) {
	verbs := map[byte]string{'A': "new", 'D': "deleted", 'M': "changed", 'R': "renamed", 'T': "another kind"}
	colours := map[byte]string{'A': "32", 'D': "31"}
	for _, c := range s.Changes {
		path := visible.Text(c.Path)
		if c.From != "" {
			path = visible.Text(c.From) + " -> " + path
		}
		var notes []string
		switch {
		case c.Binary:
			notes = append(notes, "binary")
		case c.Added > 0 || c.Deleted > 0:
			notes = append(notes, fmt.Sprintf("+%d -%d", c.Added, c.Deleted))
		}
		switch {
		case c.NewMode == "120000":
			notes = append(notes, "link")
		case c.OldMode == c.NewMode:
		case c.NewMode == "100755":
			notes = append(notes, "executable")
		case c.OldMode == "100755" && c.NewMode == "100644":
			notes = append(notes, "not executable any more")
		}
		verb := verbs[c.Status]
		if sgr := colours[c.Status]; colour && sgr != "" {
			verb = "\x1b[" + sgr + "m" + verb + "\x1b[0m" + strings.Repeat(" ", 12-len(verb))
		}
		line := fmt.Sprintf("%-12s %s", verb, path)
		if len(notes) > 0 {
			line += "  (" + strings.Join(notes, ", ") + ")"
		}
		fmt.Fprintln(w, line)
	}
	for _, f := range s.Skipped {
		fmt.Fprintf(w, "%-12s %s  (%s)\n", "left out", visible.Text(f.Path), visible.Text(f.Why))
	}
}

// total is what a patch does, in a few words.
func total(s workspace.Summary) string {
	added, deleted := s.Lines()
	files := "1 file"
	if n := len(s.Changes); n != 1 {
		files = thousands(n) + " files"
	}
	return fmt.Sprintf("%s, +%s -%s lines", files, thousands(added), thousands(deleted))
}
