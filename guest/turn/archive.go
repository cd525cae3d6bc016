package turn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"msb/protocol/turnrpc"
)

// archive is a workspace that the host sends in pieces. It waits on disk until it is whole.
type archive struct {
	mu      sync.Mutex
	file    *os.File // has no name
	written int64
}

func (r *archive) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// archiveChunk takes a piece. Offset 0 begins anew, and any other must follow the piece before.
func (a *agent) archiveChunk(ctx context.Context, f *turnrpc.Frame) (any, error) {
	var p turnrpc.ArchiveChunk
	if err := f.DecodeParams(&p); err != nil {
		return nil, err
	}
	if len(p.Data) > turnrpc.MaxArchiveChunk {
		return nil, fmt.Errorf("the piece has %d bytes, and %d are allowed", len(p.Data), turnrpc.MaxArchiveChunk)
	}
	r := &a.archive
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Offset == 0 {
		if r.file != nil {
			r.file.Close()
		}
		r.file, r.written = nil, 0
		file, err := os.CreateTemp(a.cfg.State, "archive-")
		if err != nil {
			return nil, fmt.Errorf("a place for the archive: %w", err)
		}
		_ = os.Remove(file.Name())
		r.file = file
	}
	if r.file == nil || p.Offset != r.written {
		return nil, fmt.Errorf("a piece of the archive for offset %d came, and %d is next", p.Offset, r.written)
	}
	n, err := r.file.WriteAt(p.Data, p.Offset)
	r.written += int64(n)
	if err != nil {
		return nil, fmt.Errorf("keep the archive: %w", err)
	}
	if !p.Last {
		return turnrpc.ArchiveResult{Written: r.written}, nil
	}
	file := r.file
	r.file = nil
	defer file.Close()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if err := a.cfg.Tree.Unpack(ctx, file); err != nil {
		return nil, err
	}
	if err := a.baseline(ctx); err != nil {
		return nil, err
	}
	return turnrpc.ArchiveResult{Written: r.written}, nil
}

// baselineRef remembers what the host brought, whatever is committed later.
const baselineRef = "refs/msb/baseline"

// gitTime bounds one run of git over a whole workspace.
const gitTime = 10 * time.Minute

var errNoGit = errors.New("git is not installed in the sandbox")

// git runs a shell script of git commands in the workspace, as its owner. Nothing that the workspace's configuration
// names is run: no hook, monitor or signature.
func (a *agent) git(ctx context.Context, script string, keep int) (string, error) {
	dir, err := a.cfg.Tree.OpenDir(ctx, ".")
	if err != nil {
		return "", err
	}
	defer dir.Close()
	const begin = `command -v git >/dev/null || exit 199
set -e
git() { command git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c commit.gpgSign=false -c core.quotePath=true -c gc.auto=0 "$@"; }
`
	out, err := a.execute(ctx, job{
		command: Command{Argv: []string{"/bin/sh", "-c", begin + script}, Dir: dir},
		timeout: gitTime,
		keep:    keep,
	})
	switch {
	case err != nil:
		return "", err
	case out.canceled:
		return "", context.Cause(ctx)
	case out.timedOut:
		return "", fmt.Errorf("git did not end in %v", gitTime)
	case out.status.Code == 199:
		return "", errNoGit
	case out.status.Code != 0:
		return "", fmt.Errorf("git: exit code %d: %s", out.status.Code, clip(strings.TrimSpace(out.stderr), 2048))
	case out.cut:
		return "", fmt.Errorf("the answer of git is larger than %d bytes", keep)
	}
	return out.stdout, nil
}

// baseline commits what was unpacked. A workspace that came with its own history keeps its branch as it is, and only
// gets the mark. A guest without git has no baseline; the host has its own.
func (a *agent) baseline(ctx context.Context) error {
	_, err := a.git(ctx, `
if [ ! -e .git ]; then
	git init -q
	git add -f -A
	git commit -q --allow-empty -m "msb baseline"
	git update-ref `+baselineRef+` HEAD
else
	index=$(mktemp -d)
	trap 'rm -rf "$index"' EXIT
	GIT_INDEX_FILE=$index/index; export GIT_INDEX_FILE
	git add -A
	tree=$(git write-tree)
	git update-ref `+baselineRef+` "$(git commit-tree -m "msb baseline" "$tree")"
fi
`, 64<<10)
	if errors.Is(err, errNoGit) {
		a.log.Info("there is no git in the sandbox, so the workspace has no baseline in it")
		return nil
	}
	if err != nil {
		return fmt.Errorf("commit the baseline: %w", err)
	}
	return nil
}

// maxPatchExport bounds a patch in memory. An answer holds less, and the files that do not fit are left out of it.
const maxPatchExport = 4 << 20

// exportPatch is everything that changed since the baseline: new, binary, renamed and mode-changed files included.
// Nothing in the workspace's repository changes by it.
func (a *agent) exportPatch(ctx context.Context, _ *turnrpc.Frame) (any, error) {
	const prepare = `
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
base=$(git rev-parse -q --verify ` + baselineRef + ` || git rev-parse -q --verify HEAD || git hash-object -t tree /dev/null)
objects=$(git rev-parse --git-path objects)
mkdir "$work/objects"
GIT_ALTERNATE_OBJECT_DIRECTORIES=$(cd "$objects" && pwd); export GIT_ALTERNATE_OBJECT_DIRECTORIES
GIT_OBJECT_DIRECTORY=$work/objects; export GIT_OBJECT_DIRECTORY
GIT_INDEX_FILE=$work/index; export GIT_INDEX_FILE
git read-tree "$base"
git add -A
`
	diff, err := a.git(ctx, prepare+`git diff --cached --binary --full-index -M --no-ext-diff --no-textconv --no-color "$base" | head -c `+strconv.Itoa(maxPatchExport), maxPatchExport)
	if err != nil {
		return nil, fmt.Errorf("export the patch: %w", err)
	}
	summary, err := a.git(ctx, prepare+`git diff --cached --stat=100 -M --summary --no-ext-diff --no-textconv --no-color "$base"`, 256<<10)
	if err != nil {
		return nil, fmt.Errorf("export the patch: %w", err)
	}
	if len(diff) == maxPatchExport {
		diff = turnrpc.WholeFiles(diff)
		summary += fmt.Sprintf("\n… [the patch is larger than %d bytes; what comes after that is left out of it]\n", maxPatchExport)
	}
	return turnrpc.PatchResult{Patch: diff, Summary: middleCut(summary, 64<<10)}, nil
}
