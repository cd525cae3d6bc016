package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
	// OpMetrics is ours; a peer that does not know it answers with an error.
	OpMetrics = "msb.metrics"
)

// MaxDiscoveryReply bounds the reply to a discovery request, in bytes. It is
// not a limit of other replies.
const MaxDiscoveryReply = 64 << 10

// MaxChanges bounds one batch of secret changes.
const MaxChanges = 10_000

// Names in control_protocols.
const (
	ProtocolJSON = "json"
	ProtocolCBOR = "cbor"
)

// Request is one JSON request. Only the fields of its Op are there. It prints
// without the values of secrets.
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
	Paused           bool          `json:"paused,omitempty"`            // in the reply to pause_state, when it is
	Metrics          *Metrics      `json:"metrics,omitempty"`
}

// ErrRequest reports a JSON request that no server serves. Its text holds no
// value of the request.
var ErrRequest = errors.New("invalid control request")

// ParseRequest decodes one request line. Keys count as they are written,
// integers keep all 64 bits; floats, negative numbers, numbers out of range,
// text that is no Unicode and keys that are there twice are refused. Unknown
// keys are ignored. Errors wrap ErrRequest.
func ParseRequest(line []byte) (Request, error) {
	r, err := parseRequest(line)
	if err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return r, nil
}

func parseRequest(line []byte) (r Request, err error) {
	fields, err := parseObject(line)
	if err != nil {
		return r, err
	}
	if err := fields.take("op", &r.Op); err != nil {
		return r, err
	}
	switch r.Op {
	case "":
		return r, errors.New("no op")
	case OpMemoryTarget:
		return r, fields.need("total_mib", &r.TotalMiB)
	case OpCPUTarget:
		return r, fields.need("online", &r.Online)
	case OpSecretsUpdate:
		var changes []json.RawMessage
		if err := fields.need("changes", &changes); err != nil {
			return r, err
		}
		if len(changes) > MaxChanges {
			return r, fmt.Errorf("more than %d changes", MaxChanges)
		}
		r.Changes = make([]Change, len(changes))
		for i, raw := range changes {
			if r.Changes[i], err = parseChange(raw); err != nil {
				return r, fmt.Errorf("change %d: %w", i, err)
			}
		}
	}
	return r, nil
}

func parseChange(raw []byte) (c Change, err error) {
	fields, err := exactObject(raw)
	if err != nil {
		return c, err
	}
	if err := errors.Join(
		fields.take("change", &c.Change), fields.take("name", &c.Name),
		fields.take("value", &c.Value), fields.take("hosts", &c.Hosts),
	); err != nil {
		return c, err
	}
	if _, named := fields["name"]; !named {
		return c, errors.New("no name")
	}
	return c, c.Check()
}

// ParseReply decodes one reply line by the same rules.
func ParseReply(line []byte) (Reply, error) {
	r, err := parseReply(line)
	if err != nil {
		return Reply{}, fmt.Errorf("control reply: %w", err)
	}
	return r, nil
}

func parseReply(line []byte) (r Reply, err error) {
	fields, err := parseObject(line)
	if err != nil {
		return r, err
	}
	if err := errors.Join(
		fields.need("ok", &r.OK), fields.take("error", &r.Error), fields.take("paused", &r.Paused),
		fields.take("control_protocols", &r.ControlProtocols), fields.take("metrics", &r.Metrics),
	); err != nil {
		return r, err
	}
	if sub, err := fields.object("memory"); err != nil {
		return r, err
	} else if sub != nil {
		m := &MemoryState{}
		if err := errors.Join(sub.need("boot_mib", &m.BootMiB), sub.need("target_mib", &m.TargetMiB),
			sub.need("current_mib", &m.CurrentMiB), sub.need("max_mib", &m.MaxMiB)); err != nil {
			return r, fmt.Errorf("memory: %w", err)
		}
		r.Memory = m
	}
	if sub, err := fields.object("cpu"); err != nil {
		return r, err
	} else if sub != nil {
		c := &CPUState{}
		if err := errors.Join(sub.need("possible", &c.Possible), sub.need("requested_online", &c.RequestedOnline),
			sub.need("actual_online", &c.ActualOnline), sub.need("enforced", &c.Enforced)); err != nil {
			return r, fmt.Errorf("cpu: %w", err)
		}
		r.CPU = c
	}
	if sub, err := fields.object("capabilities"); err != nil {
		return r, err
	} else if sub != nil {
		c := &Capabilities{}
		if err := errors.Join(sub.need("cpu_resize", &c.CPUResize), sub.need("memory_resize", &c.MemoryResize),
			sub.need("secrets_update", &c.SecretsUpdate)); err != nil {
			return r, fmt.Errorf("capabilities: %w", err)
		}
		r.Capabilities = c
	}
	return r, nil
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
