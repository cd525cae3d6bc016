package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Operations of the JSON form: one line in, one line out, close.
const (
	OpCapabilities  = "capabilities"
	OpMemoryState   = "memory_state"
	OpMemoryTarget  = "memory_target"
	OpCPUState      = "cpu_state"
	OpCPUTarget     = "cpu_target"
	OpSecretsUpdate = "secrets_update"
	OpPause         = "pause"
	OpResume        = "resume"
	OpPauseState    = "pause_state"
)

// MaxDiscoveryReply bounds the reply to a discovery request, in bytes. It is
// not a limit of other replies.
const MaxDiscoveryReply = 64 << 10

// Names in control_protocols.
const (
	ProtocolJSON = "json"
	ProtocolCBOR = "cbor"
)

// Request is one JSON request. Only the fields of its Op are there.
type Request struct {
	Op       string   `json:"op"`
	TotalMiB *uint64  `json:"total_mib,omitempty"`
	Online   *uint32  `json:"online,omitempty"`
	Changes  []Change `json:"changes,omitzero"`
}

// Reply is one JSON reply. Error goes with OK false.
type Reply struct {
	OK               bool          `json:"ok"`
	Error            string        `json:"error,omitempty"`
	Memory           *MemoryState  `json:"memory,omitempty"`
	CPU              *CPUState     `json:"cpu,omitempty"`
	Capabilities     *Capabilities `json:"capabilities,omitempty"`
	ControlProtocols []string      `json:"control_protocols,omitempty"` // in the reply to capabilities only
}

// ErrRequest reports a JSON request that no server serves. Its text holds no
// value of the request.
var ErrRequest = errors.New("invalid control request")

// ParseRequest decodes one request line. Integers keep all 64 bits; floats,
// negative numbers, numbers out of range and keys that are there twice are
// refused. Unknown keys are ignored. Errors wrap ErrRequest.
func ParseRequest(line []byte) (Request, error) {
	var r Request
	if err := checkUniqueKeys(line); err != nil {
		return r, fmt.Errorf("%w: %v", ErrRequest, err)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return Request{}, fmt.Errorf("%w: %s", ErrRequest, describe(err))
	}
	switch r.Op {
	case "":
		return r, fmt.Errorf("%w: no op", ErrRequest)
	case OpMemoryTarget:
		if r.TotalMiB == nil {
			return r, fmt.Errorf("%w: memory_target without total_mib", ErrRequest)
		}
	case OpCPUTarget:
		if r.Online == nil {
			return r, fmt.Errorf("%w: cpu_target without online", ErrRequest)
		}
	case OpSecretsUpdate:
		if r.Changes == nil {
			return r, fmt.Errorf("%w: secrets_update without changes", ErrRequest)
		}
		for i, c := range r.Changes {
			if err := c.Check(); err != nil {
				return r, fmt.Errorf("%w: change %d: %v", ErrRequest, i, err)
			}
		}
	}
	return r, nil
}

// describe says what is wrong with a request without quoting from it, which
// json's own errors do: a request may hold a secret.
func describe(err error) string {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		return fmt.Sprintf("field %q has the wrong type or is out of range", t.Field)
	}
	return "not a JSON object"
}

// ParseReply decodes one reply line.
func ParseReply(line []byte) (Reply, error) {
	var r struct {
		OK *bool `json:"ok"`
		Reply
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return Reply{}, fmt.Errorf("control reply: %w", err)
	}
	if r.OK == nil {
		return Reply{}, errors.New("control reply: no ok")
	}
	r.Reply.OK = *r.OK
	return r.Reply, nil
}

// AppendLine appends v as one JSON line.
func AppendLine(dst []byte, v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, err
	}
	return append(dst, b.Bytes()...), nil
}

// checkUniqueKeys refuses an object that names a key twice, at any depth:
// which of the two values counts would depend on the reader.
func checkUniqueKeys(line []byte) error {
	type level struct {
		keys   map[string]bool // nil: an array
		expect bool            // the next token is a key
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var stack []level
	for {
		tok, err := dec.Token()
		if err == io.EOF && len(stack) == 0 {
			return nil
		}
		if err != nil {
			return errors.New("not a JSON object")
		}
		top := len(stack) - 1
		if key, ok := tok.(string); ok && top >= 0 && stack[top].expect {
			if stack[top].keys[key] {
				return errors.New("a key is there twice")
			}
			stack[top].keys[key] = true
			stack[top].expect = false
			continue
		}
		switch tok {
		case json.Delim('{'):
			stack = append(stack, level{keys: map[string]bool{}, expect: true})
			continue
		case json.Delim('['):
			stack = append(stack, level{})
			continue
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:top]
			top--
		}
		if top >= 0 && stack[top].keys != nil {
			stack[top].expect = true
		}
	}
}
