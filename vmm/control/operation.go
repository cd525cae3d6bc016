package control

import (
	"context"
	"fmt"

	"msb/protocol/control"
	"msb/protocol/record"
)

// operation makes of a framed request what carries it out. An error is one that
// the client gets: nothing has been done.
func (s *Server) operation(e control.Envelope) (func(context.Context) (any, error), error) {
	b := s.backend
	switch e.T {
	case control.TypeCapabilities:
		return query(s, e, func(ctx context.Context, _ control.Empty) (control.Capabilities, error) {
			return b.Capabilities(ctx), nil
		})
	case control.TypeMemoryState:
		return query(s, e, func(ctx context.Context, _ control.Empty) (control.MemoryState, error) { return b.MemoryState(ctx) })
	case control.TypeMemoryTarget:
		return change(s, e, func(ctx context.Context, p control.MemoryTarget) (control.MemoryState, error) {
			return b.SetMemoryTarget(ctx, p.TotalMiB)
		})
	case control.TypeCPUState:
		return query(s, e, func(ctx context.Context, _ control.Empty) (control.CPUState, error) { return b.CPUState(ctx) })
	case control.TypeCPUTarget:
		return change(s, e, func(ctx context.Context, p control.CPUTarget) (control.CPUState, error) {
			return b.SetCPUTarget(ctx, p.Online)
		})
	case control.TypeSecretsUpdate:
		return change(s, e, func(ctx context.Context, p control.SecretsUpdate) (control.SecretsResult, error) {
			return b.UpdateSecrets(ctx, p.Changes), nil
		})
	}
	return nil, &control.Error{Code: control.CodeUnsupportedOperation, Effect: control.EffectNone,
		Message: "this runtime knows no operation " + cut(e.T, 64)}
}

// query is an operation that changes nothing, whatever becomes of it.
func query[P, R any](s *Server, e control.Envelope, do func(context.Context, P) (R, error)) (func(context.Context) (any, error), error) {
	return decoded(s, e, control.EffectNone, do)
}

// change is one that may have changed something when it fails without saying.
func change[P, R any](s *Server, e control.Envelope, do func(context.Context, P) (R, error)) (func(context.Context) (any, error), error) {
	return decoded(s, e, control.EffectUnknown, do)
}

func decoded[P, R any](s *Server, e control.Envelope, effect string, do func(context.Context, P) (R, error)) (func(context.Context) (any, error), error) {
	var p P
	if err := record.DecodeStrict(e.P, &p); err != nil {
		return nil, &control.Error{Code: control.CodeInvalidRequest, Effect: control.EffectNone, Message: err.Error()}
	}
	if u, ok := any(p).(control.SecretsUpdate); ok && len(u.Changes) > control.MaxChanges {
		return nil, &control.Error{Code: control.CodeInvalidRequest, Effect: control.EffectNone, Message: fmt.Sprintf("more than %d changes", control.MaxChanges)}
	}
	return func(ctx context.Context) (r any, err error) {
		err = s.guarded(e.T, func() (err error) {
			r, err = do(ctx, p)
			return err
		})
		if err != nil {
			return nil, problem(err, effect)
		}
		return r, nil
	}, nil
}
