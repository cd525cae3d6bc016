package agent

import (
	"fmt"

	"msb/protocol/record"
)

// NodeRef names a node or an open handle of msb.fs: an id that an earlier
// response brought, or a number below MaxNodeOps for what the operation at that
// place of the same request has brought.
type NodeRef = uint64

// NodeRequestPayload is a list of operations that the guest does in order. The
// first one that fails ends it; what was done before stays done.
//
// At most one of them may be a NodeReadStream or NodeWriteStream, whose data
// are raw records by Bulk, as of core.fs.request: core.bulk.accepted, records
// and credit, core.bulk.finish; operations after it follow then.
type NodeRequestPayload struct {
	Ops  []NodeOp
	As   *NodeIdentity
	Bulk *BulkOffer
}

// NodeIdentity is who the operations of a request are done as; without it, as
// the guest's root. The files they make belong to UID and GID by the guest's
// rules. Privileged keeps root's permissions, for a host that has checked those
// of its user itself.
type NodeIdentity struct {
	UID        uint32
	GID        uint32
	Groups     []uint32
	Privileged bool
}

func (i *NodeIdentity) fields(w *walker) {
	w.u32("uid", &i.UID)
	w.u32("gid", &i.GID)
	w.numbers("groups", &i.Groups)
	w.bool("privileged", &i.Privileged)
}

// NodeResponsePayload answers a request. Results are those of the operations
// that were done; Errno, a number of Linux, says why the next one was not, 0
// when all were.
type NodeResponsePayload struct {
	Results []NodeResult
	Errno   uint32
	Message string // what Errno does not say; may be empty
}

// NodeOp is an operation: a pointer to one of the Node… structs.
type NodeOp interface {
	fielder
	opName() string
	// Result returns an empty result of the type that the operation has.
	Result() NodeResult
}

// NodeResult is the result of an operation: a pointer to one of *Result structs.
type NodeResult interface {
	fielder
	resultName() string
}

// NodeOpName returns the operation's name on the wire.
func NodeOpName(op NodeOp) string { return op.opName() }

// MarshalCBOR encodes {ops: [{name: [field, …]}, …], as?: […], bulk?: {…}}.
func (r NodeRequestPayload) MarshalCBOR() ([]byte, error) {
	return r.appendTo(make([]byte, 0, 128), nil)
}

func (r *NodeRequestPayload) appendTo(b []byte, lend *Gathered) ([]byte, error) {
	start := len(b)
	b = append(b, 0xa1, 0x63, 'o', 'p', 's')
	b = record.AppendHead(b, record.Array, uint64(len(r.Ops)))
	for _, op := range r.Ops {
		if op == nil {
			return nil, fmt.Errorf("request without an operation")
		}
		name := op.opName()
		b = record.AppendHead(append(b, 0xa1), record.Text, uint64(len(name)))
		b = appendFields(append(b, name...), op, lend)
	}
	if r.As != nil {
		b[start]++
		b = appendFields(append(b, 0x62, 'a', 's'), r.As, nil)
	}
	if r.Bulk != nil {
		b[start]++
		offer, err := record.Encode(r.Bulk)
		if err != nil {
			return nil, err
		}
		b = append(append(b, 0x64, 'b', 'u', 'l', 'k'), offer...)
	}
	return b, nil
}

// decodePayload is strict about operations: a guest must not do less than it
// was asked for. Byte strings share p.
func (r *NodeRequestPayload) decodePayload(p []byte) error {
	*r = NodeRequestPayload{}
	err := walkMap(p, func(key string, c *record.Cursor) error {
		switch key {
		case "ops":
			return r.decodeOps(c)
		case "as":
			if skipNull(c) {
				return nil
			}
			r.As = new(NodeIdentity)
			return decodeFields(c, r.As)
		case "bulk":
			if skipNull(c) {
				return nil
			}
			start := c.Pos
			if err := c.Skip(1); err != nil {
				return err
			}
			r.Bulk = new(BulkOffer)
			return record.DecodeStruct(c.B[start:c.Pos], r.Bulk)
		}
		return c.Skip(1)
	})
	if err == nil && r.Ops == nil {
		err = record.Malformed("field %q is missing", "ops")
	}
	return err
}

func (r *NodeRequestPayload) decodeOps(c *record.Cursor) error {
	m, n, err := c.Head()
	switch {
	case err != nil:
		return err
	case m != record.Array || n == 0 || n > MaxNodeOps:
		return record.Malformed("ops is not a list of 1 to %d operations", MaxNodeOps)
	}
	r.Ops = make([]NodeOp, 0, n)
	for range n {
		m, pairs, err := c.Head()
		if err != nil {
			return err
		}
		if m != record.Map || pairs != 1 {
			return record.Malformed("an operation is not a map of one name")
		}
		name, err := c.String(record.Text)
		if err != nil {
			return err
		}
		fresh := nodeOps[string(name)]
		if fresh == nil {
			return record.Malformed("unknown operation %.64q", name)
		}
		op := fresh()
		if err := decodeFields(c, op); err != nil {
			return fmt.Errorf("%s: %w", op.opName(), err)
		}
		r.Ops = append(r.Ops, op)
	}
	return nil
}

// MarshalCBOR encodes {results: [[field, …], …], errno: n, message?: text}.
func (r NodeResponsePayload) MarshalCBOR() ([]byte, error) {
	return r.appendTo(make([]byte, 0, 192), nil)
}

func (r *NodeResponsePayload) appendTo(b []byte, lend *Gathered) ([]byte, error) {
	start := len(b)
	b = append(b, 0xa2, 0x67, 'r', 'e', 's', 'u', 'l', 't', 's')
	b = record.AppendHead(b, record.Array, uint64(len(r.Results)))
	for _, x := range r.Results {
		b = appendFields(b, x, lend)
	}
	b = record.AppendHead(append(b, 0x65, 'e', 'r', 'r', 'n', 'o'), record.Uint, uint64(r.Errno))
	if r.Message != "" {
		b[start]++
		b = record.AppendHead(append(b, 0x67, 'm', 'e', 's', 's', 'a', 'g', 'e'), record.Text, uint64(len(r.Message)))
		b = append(b, r.Message...)
	}
	return b, nil
}

// DecodeNodeResponse decodes the answer to a request of these operations. Byte
// strings in it share p.
func DecodeNodeResponse(p []byte, ops []NodeOp) (NodeResponsePayload, error) {
	var r NodeResponsePayload
	seen := 0
	err := walkMap(p, func(key string, c *record.Cursor) error {
		switch key {
		case "results":
			seen |= 1
			m, n, err := c.Head()
			if err != nil {
				return err
			}
			if m != record.Array || n > uint64(len(ops)) {
				return record.Malformed("results are not those of %d operations", len(ops))
			}
			r.Results = make([]NodeResult, n)
			for i := range r.Results {
				r.Results[i] = ops[i].Result()
				if err := decodeFields(c, r.Results[i]); err != nil {
					return fmt.Errorf("%s: %w", ops[i].opName(), err)
				}
			}
			return nil
		case "errno":
			seen |= 2
			m, n, err := c.Head()
			if err == nil && (m != record.Uint || n > 4095) {
				err = record.Malformed("errno is not an error number")
			}
			r.Errno = uint32(n)
			return err
		case "message":
			text, err := c.String(record.Text)
			r.Message = string(text)
			return err
		}
		return c.Skip(1)
	})
	switch {
	case err != nil:
	case seen != 3:
		err = record.Malformed("results or errno are missing")
	case (r.Errno == 0) != (len(r.Results) == len(ops)):
		err = record.Malformed("%d results of %d operations with errno %d", len(r.Results), len(ops), r.Errno)
	}
	return r, err
}

// walkMap calls value with every text key of the map p. It has to pass over
// exactly one item.
func walkMap(p []byte, value func(key string, c *record.Cursor) error) error {
	c := record.Cursor{B: p}
	m, n, err := c.Head()
	if err != nil {
		return err
	}
	if m != record.Map {
		return record.Malformed("payload is not a map")
	}
	for i := uint64(0); n == record.Indefinite || i < n; i++ {
		if n == record.Indefinite && c.AtBreak() {
			break
		}
		key, isText, err := c.Key()
		if err == nil && !isText {
			key = nil
		}
		if err == nil {
			err = value(string(key), &c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func skipNull(c *record.Cursor) bool {
	if c.Pos < len(c.B) && c.B[c.Pos] == 0xf6 {
		c.Pos++
		return true
	}
	return false
}
