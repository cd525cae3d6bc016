package turn

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"time"

	"msb/protocol/turnrpc"
)

// HelloTimeout bounds the wait for the guest's first frame.
const HelloTimeout = 15 * time.Second

// ErrCapability reports a guest that does not know the session's secret. It
// gets no answer.
var ErrCapability = errors.New("guest capability mismatch")

// upgrade is what to do about a guest that is too old.
const upgrade = "run `make build && make image-update`, restart the sandbox and open a new session"

// policy of a handshake.
type greeting struct {
	id, capability string
	recorded       Recorded
	probe          bool
}

// greet reads the guest's hello, checks it and answers. It closes rwc when ctx
// or HelloTimeout ends, which is the only way to end a read.
func (g greeting) greet(ctx context.Context, rwc io.ReadWriteCloser) (h turnrpc.Hello, common map[string]int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, HelloTimeout, fmt.Errorf("the guest said no hello in %v", HelloTimeout))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { rwc.Close() })
	defer func() {
		if !stop() {
			err = fmt.Errorf("hello: %w", context.Cause(ctx))
		}
	}()
	f, err := turnrpc.Read(rwc)
	if err != nil {
		return h, nil, fmt.Errorf("hello: %w", err)
	}
	if f.Method != turnrpc.MethodHello {
		return h, nil, fmt.Errorf("hello: the guest began with method %q, id %q", clip(f.Method, 64), clip(f.ID, 64))
	}
	if err := f.DecodeParams(&h); err != nil {
		return h, nil, fmt.Errorf("hello: %w", err)
	}
	h.Protocol = turnrpc.Normalize(h.Protocol)
	if !equal(h.SessionID, g.id) || !equal(h.Capability, g.capability) {
		return h, nil, ErrCapability
	}
	result := turnrpc.HelloResult{Protocol: turnrpc.Version}
	refusal := g.refuse(h)
	if refusal != nil {
		result.Message = refusal.message
	} else {
		result.Accepted = true
		if h.Protocol >= turnrpc.Version {
			common = turnrpc.CommonExtensions(turnrpc.Extensions(), h.Extensions)
			result.Extensions = common
		}
	}
	answer, err := turnrpc.Respond(f.ID, result)
	if err != nil {
		return h, nil, err
	}
	b, err := turnrpc.Append(nil, answer)
	if err != nil {
		return h, nil, err
	}
	if _, err := rwc.Write(b); err != nil {
		return h, nil, fmt.Errorf("answer hello: %w", err)
	}
	if refusal != nil {
		return h, nil, refusal.err
	}
	return h, common, nil
}

type refusal struct {
	message string
	err     error
}

// refuse says why a guest that proved itself is still refused.
func (g greeting) refuse(h turnrpc.Hello) *refusal {
	incompatible := fmt.Sprintf("guest protocol %d is incompatible with required protocol %d", h.Protocol, turnrpc.Version)
	switch {
	case h.Protocol > turnrpc.Version:
		return &refusal{incompatible, fmt.Errorf("%s: this msb is older than the guest; update msb", incompatible)}
	case h.Protocol < turnrpc.Version && !g.probe:
		return &refusal{incompatible, tooOld(h.Protocol)}
	case g.recorded.Protocol != 0 && h.Protocol != g.recorded.Protocol:
		m := fmt.Sprintf("guest protocol %d differs from the protocol %d of this session", h.Protocol, g.recorded.Protocol)
		return &refusal{m, errors.New(m + ": open a new session")}
	case h.Protocol >= turnrpc.Version && h.ImageID == "":
		m := "guest names no image"
		return &refusal{m, errors.New(m)}
	case g.recorded.ImageID != "" && h.ImageID != g.recorded.ImageID:
		m := fmt.Sprintf("guest image %q differs from the image %q of this session", clip(h.ImageID, 128), g.recorded.ImageID)
		return &refusal{m, errors.New(m + ": open a new session")}
	}
	return nil
}

// tooOld is ErrGuestTooOld for a version, with what to do.
func tooOld(version int) error {
	return fmt.Errorf("%w: it speaks %d and %d is needed; %s", ErrGuestTooOld, version, turnrpc.Version, upgrade)
}

// equal compares secrets in a time that does not depend on them.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// clip bounds foreign text in an error.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
