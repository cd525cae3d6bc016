package turn

import (
	"context"
	"fmt"
	"strings"
	"time"

	"msb/protocol/turnrpc"
)

// History asks the guest for the conversation; texts in it are the guest's.
func (s *Session) History(ctx context.Context) ([]turnrpc.AgentEvent, error) {
	var c turnrpc.Context
	err := s.call(ctx, turnrpc.MethodGetContext, turnrpc.OK{OK: true}, &c)
	return c.History, err
}

// SetModel selects the model of the next turns: a name, a provider's label and
// a model, and nothing secret. It is ErrTurnActive during a turn.
func (s *Session) SetModel(ctx context.Context, m turnrpc.GuestModel) error {
	m.CredentialEnv, m.BaseURL = "", ""
	release, ok := s.exclude()
	if !ok {
		return fmt.Errorf("select model %q: %w", m.Name, ErrTurnActive)
	}
	defer release()
	if err := s.call(ctx, turnrpc.MethodSetModel, turnrpc.SetModel{Model: m}, nil); err != nil {
		return err
	}
	s.mu.Lock()
	s.model = m
	s.mu.Unlock()
	return nil
}

// Model is the selected model.
func (s *Session) Model() turnrpc.GuestModel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model
}

// ExportPatch asks the guest for what it changed. The guest may lie.
func (s *Session) ExportPatch(ctx context.Context) (p turnrpc.PatchResult, err error) {
	err = s.call(ctx, turnrpc.MethodExportPatch, turnrpc.OK{OK: true}, &p)
	return p, err
}

// ListFiles lists a directory of the workspace.
func (s *Session) ListFiles(ctx context.Context, q turnrpc.ListFiles) ([]string, error) {
	var r turnrpc.ListFilesResult
	err := s.call(ctx, turnrpc.MethodListFiles, q, &r)
	return r.Paths, err
}

// ReadFile reads a file of the workspace.
func (s *Session) ReadFile(ctx context.Context, q turnrpc.ReadFile) (r turnrpc.ReadFileResult, err error) {
	err = s.call(ctx, turnrpc.MethodReadFile, q, &r)
	return r, err
}

// Search searches the workspace.
func (s *Session) Search(ctx context.Context, q turnrpc.Search) ([]string, error) {
	var r turnrpc.SearchResult
	err := s.call(ctx, turnrpc.MethodSearch, q, &r)
	return r.Matches, err
}

// ApplyPatch applies a unified diff to the workspace.
func (s *Session) ApplyPatch(ctx context.Context, patch string) (r turnrpc.ApplyPatchResult, err error) {
	if len(patch) > turnrpc.MaxPatch {
		return r, fmt.Errorf("patch has %d bytes, allowed are %d", len(patch), turnrpc.MaxPatch)
	}
	err = s.call(ctx, turnrpc.MethodApplyPatch, turnrpc.ApplyPatch{Patch: patch}, &r)
	return r, err
}

// RunCommand runs a command for the host, not for a model: nobody is asked.
func (s *Session) RunCommand(ctx context.Context, q turnrpc.RunCommand) (r turnrpc.RunCommandResult, err error) {
	if len(q.Command) > turnrpc.MaxCommand || strings.Contains(q.Command, "\x00") {
		return r, fmt.Errorf("command has %d bytes or holds a NUL, allowed are %d", len(q.Command), turnrpc.MaxCommand)
	}
	err = s.call(ctx, turnrpc.MethodRunCommand, q, &r)
	return r, err
}

// SetTime sets the guest's clock.
func (s *Session) SetTime(ctx context.Context, t time.Time) error {
	return s.call(ctx, turnrpc.MethodSetTime, turnrpc.SetTime{UnixMicro: t.UnixMicro()}, nil)
}

// Quiesce asks the guest to write everything to its disk and freeze it.
func (s *Session) Quiesce(ctx context.Context) error {
	return s.call(ctx, turnrpc.MethodQuiesce, turnrpc.OK{OK: true}, nil)
}

// ArchiveChunk sends a piece of a tar of the workspace and returns how many
// bytes the guest has.
func (s *Session) ArchiveChunk(ctx context.Context, c turnrpc.ArchiveChunk) (int64, error) {
	if len(c.Data) > turnrpc.MaxArchiveChunk {
		return 0, fmt.Errorf("archive chunk has %d bytes, allowed are %d", len(c.Data), turnrpc.MaxArchiveChunk)
	}
	var r turnrpc.ArchiveResult
	err := s.call(ctx, turnrpc.MethodArchiveChunk, c, &r)
	return r.Written, err
}

func (s *Session) call(ctx context.Context, method string, params, result any) error {
	return s.conn.Call(ctx, s.nextID(), method, params, result)
}
