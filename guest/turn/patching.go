package turn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"msb/guest/turn/patch"
	"msb/guest/turn/tree"
	"msb/protocol/turnrpc"
)

// Limits of a patch.
const (
	patchTime    = 60 * time.Second
	maxPatched   = 16 << 20 // bytes of one file
	maxPatchFile = 2000     // files
)

func (t *turn) applyPatch(c toolCall) (string, error) {
	var p struct {
		Patch string `json:"patch"`
	}
	if err := arguments(c, &p, "patch"); err != nil {
		return "", err
	}
	return t.a.patch(t.ctx, p.Patch)
}

// patch applies a unified diff to the workspace and says what it did. Every name in it is checked before anything is
// run. git apply goes first: it knows renames, links and binary files. It runs as the workspace's owner, outside of any
// repository, so that no configuration in the workspace has a say. Where git is missing or does not take the patch,
// the agent's own hand, which forgives wrong counts and places, goes second.
func (a *agent) patch(ctx context.Context, text string) (string, error) {
	if len(text) > turnrpc.MaxPatch {
		return "", fmt.Errorf("the patch has %d bytes, and %d are allowed", len(text), turnrpc.MaxPatch)
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	files, err := patch.Parse(text)
	if err != nil {
		return "", err
	}
	if len(files) > maxPatchFile {
		return "", fmt.Errorf("the patch changes %d files, and %d are allowed at once", len(files), maxPatchFile)
	}
	gitErr := a.gitApply(ctx, text)
	if gitErr == nil {
		return summary(files), nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	for i := range files {
		if files[i].Binary || files[i].Special {
			return "", fmt.Errorf("%s is a binary file, link or submodule, which only git can patch: %w", files[i].Name(), gitErr)
		}
	}
	_, err = tree.Do(ctx, a.cfg.Tree, func(ctx context.Context, r *tree.Root) (struct{}, error) {
		return struct{}{}, applyFiles(ctx, r, files)
	})
	if err != nil {
		return "", err
	}
	return summary(files), nil
}

func summary(files []patch.File) string {
	var b strings.Builder
	b.WriteString("applied:\n")
	for i := range files {
		f := &files[i]
		switch {
		case f.Old == "":
			fmt.Fprintf(&b, "A %s\n", f.New)
		case f.New == "":
			fmt.Fprintf(&b, "D %s\n", f.Old)
		case f.Old != f.New && f.Copy:
			fmt.Fprintf(&b, "C %s -> %s\n", f.Old, f.New)
		case f.Old != f.New:
			fmt.Fprintf(&b, "R %s -> %s\n", f.Old, f.New)
		default:
			fmt.Fprintf(&b, "M %s\n", f.New)
		}
	}
	return clip(strings.TrimSuffix(b.String(), "\n"), 8<<10)
}

// outsideGit keeps git from looking for a repository and for anybody's configuration.
var outsideGit = []string{
	"GIT_DIR=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
}

func (a *agent) gitApply(ctx context.Context, text string) error {
	dir, err := a.cfg.Tree.OpenDir(ctx, ".")
	if err != nil {
		return err
	}
	defer dir.Close()
	out, err := a.execute(ctx, job{
		command: Command{Argv: []string{"git", "apply", "--whitespace=nowarn", "-"}, Env: outsideGit, Dir: dir},
		stdin:   []byte(text),
		timeout: patchTime,
		keep:    8 << 10,
	})
	if err != nil {
		return err
	}
	if out.canceled || out.timedOut || out.status.Code != 0 {
		return errors.New("git apply: " + strings.TrimSpace(out.stderr))
	}
	return nil
}

// applyFiles works all changes out in memory before it writes the first file.
func applyFiles(ctx context.Context, r *tree.Root, files []patch.File) error {
	type change struct {
		write, remove string
		data          string
		mode          uint32
	}
	var changes []change
	state := make(map[string]*string) // files as the patch has left them so far; nil: removed
	modes := make(map[string]uint32)
	read := func(name string) (string, uint32, error) {
		if s, ok := state[name]; ok {
			if s == nil {
				return "", 0, fmt.Errorf("%s: the patch has removed it before", name)
			}
			return *s, modes[name], nil
		}
		b, mode, err := r.ReadFile(ctx, name, maxPatched)
		return string(b), mode, err
	}
	for i := range files {
		f := &files[i]
		var old string
		mode := uint32(0o644)
		if f.Old != "" {
			var err error
			if old, mode, err = read(f.Old); err != nil {
				return err
			}
		}
		if f.New != "" && f.New != f.Old {
			there, err := r.Exists(f.New)
			if s, ok := state[f.New]; ok {
				there, err = s != nil, nil
			}
			if err != nil {
				return err
			}
			if there {
				return fmt.Errorf("%s: it is there already; a patch that changes it begins with --- a/%s", f.New, f.New)
			}
		}
		data, err := f.Apply(old)
		if err != nil {
			return err
		}
		if f.Mode != 0 {
			mode = f.Mode
		}
		if f.New == "" {
			if data != "" {
				return fmt.Errorf("%s: the patch deletes it, but not all of its lines", f.Old)
			}
			changes = append(changes, change{remove: f.Old})
			state[f.Old] = nil
			continue
		}
		changes = append(changes, change{write: f.New, data: data, mode: mode})
		state[f.New], modes[f.New] = &data, mode
		if f.Old != "" && f.Old != f.New && !f.Copy {
			changes = append(changes, change{remove: f.Old})
			state[f.Old] = nil
		}
	}
	for _, c := range changes {
		var err error
		if c.write != "" {
			err = r.WriteFile(c.write, []byte(c.data), c.mode)
		} else {
			err = r.Remove(c.remove)
		}
		if err != nil {
			return fmt.Errorf("the patch was applied in part only: %w", err)
		}
	}
	return nil
}
