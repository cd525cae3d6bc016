package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"msb/guest/turn/tree"
	"msb/protocol/turnrpc"
)

// The five tools as a host calls them. Nobody is asked: the host is the one who would be.

func (a *agent) hostListFiles(ctx context.Context, f *turnrpc.Frame) (any, error) {
	var p turnrpc.ListFiles
	if err := f.DecodeParams(&p); err != nil {
		return nil, err
	}
	depth, limit := turnrpc.MaxListDepth, turnrpc.MaxListPaths
	if p.Depth > 0 {
		depth = min(depth, p.Depth)
	}
	if p.Limit > 0 {
		limit = min(limit, p.Limit)
	}
	list, _, err := a.cfg.Tree.List(ctx, p.Path, tree.ListOptions{Depth: depth, Limit: limit, Hidden: true})
	if err != nil {
		return nil, err
	}
	r := turnrpc.ListFilesResult{Paths: make([]string, len(list))}
	for i, e := range list {
		r.Paths[i] = e.Path
	}
	return r, nil
}

func (a *agent) hostReadFile(ctx context.Context, f *turnrpc.Frame) (any, error) {
	var p turnrpc.ReadFile
	if err := f.DecodeParams(&p); err != nil {
		return nil, err
	}
	limit := turnrpc.MaxReadFile
	if p.MaxBytes > 0 {
		limit = min(limit, p.MaxBytes)
	}
	text, err := a.cfg.Tree.ReadText(ctx, p.Path, tree.ReadOptions{MaxBytes: limit, Start: p.StartLine, End: p.EndLine})
	if err != nil {
		return nil, err
	}
	return turnrpc.ReadFileResult{Content: text.Content, Binary: text.Binary, Truncated: text.Truncated}, nil
}

// hostMatches is how many files a host's search finds if it does not say.
const hostMatches = 50

// hostSearch finds files, by name or content, as the contract has it.
func (a *agent) hostSearch(ctx context.Context, f *turnrpc.Frame) (any, error) {
	var p turnrpc.Search
	if err := f.DecodeParams(&p); err != nil {
		return nil, err
	}
	limit := hostMatches
	if p.Limit > 0 {
		limit = min(p.Limit, turnrpc.MaxListPaths)
	}
	found, err := a.cfg.Tree.Search(ctx, p.Path, tree.SearchOptions{Query: p.Query, Regex: p.IsRegex, Limit: limit, Names: true})
	if err != nil {
		return nil, err
	}
	r := turnrpc.SearchResult{Matches: make([]string, len(found.Matches))}
	for i, m := range found.Matches {
		r.Matches[i] = m.Path
	}
	return r, nil
}

func (a *agent) hostApplyPatch(ctx context.Context, f *turnrpc.Frame) (any, error) {
	var p turnrpc.ApplyPatch
	if err := f.DecodeParams(&p); err != nil {
		return nil, err
	}
	output, err := a.patch(ctx, p.Patch)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return turnrpc.ApplyPatchResult{Output: err.Error()}, nil
	}
	return turnrpc.ApplyPatchResult{OK: true, Output: output}, nil
}

// maxHostCommandTime bounds a command of the host's.
const maxHostCommandTime = time.Hour

func (a *agent) hostRunCommand(ctx context.Context, f *turnrpc.Frame) (any, error) {
	var p turnrpc.RunCommand
	if err := f.DecodeParams(&p); err != nil {
		return nil, err
	}
	if err := checkCommand(p.Command); err != nil {
		return nil, err
	}
	timeout := defaultCommandTime
	if p.TimeoutSec > 0 {
		timeout = min(time.Duration(min(p.TimeoutSec, 1<<30))*time.Second, maxHostCommandTime)
	}
	dir, err := a.cfg.Tree.OpenDir(ctx, p.Workdir)
	if err != nil {
		return nil, fmt.Errorf("workdir: %w", err)
	}
	defer dir.Close()
	out, err := a.execute(ctx, job{
		command: Command{Argv: []string{"/bin/sh", "-c", p.Command}, Dir: dir},
		timeout: timeout,
		keep:    turnrpc.MaxCommandOutput,
	})
	if err != nil {
		return nil, err
	}
	if out.canceled {
		return nil, context.Cause(ctx)
	}
	r := turnrpc.RunCommandResult{
		ExitCode: out.status.Code, Stdout: out.stdout, Stderr: out.stderr,
		Duration: out.duration.Round(time.Millisecond).String(), Truncated: out.cut,
	}
	if out.timedOut {
		r.ExitCode = timeoutCode
		r.Stderr += fmt.Sprintf("\n[killed after %v]\n", timeout)
	}
	return r, nil
}

// timeoutCode is the exit code of a command that ran out of time, as timeout(1) has it.
const timeoutCode = 124

// checkCommand refuses what must not even be asked for.
func checkCommand(command string) error {
	switch {
	case command == "":
		return errors.New("the command is empty")
	case len(command) > turnrpc.MaxCommand:
		return fmt.Errorf("the command has %d bytes, and %d are allowed: write a script into the workspace with apply_patch and run that", len(command), turnrpc.MaxCommand)
	}
	for i := range len(command) {
		if command[i] == 0 {
			return errors.New("the command holds a NUL byte")
		}
	}
	return nil
}
