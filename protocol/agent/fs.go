package agent

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"msb/protocol/record"
)

// FSRequestPayload is one file system operation. Bulk goes with OpRead and
// OpWrite only.
type FSRequestPayload struct {
	Op   FSOp
	Bulk *BulkOffer
}

// FSOp is one of the Op… structs.
type FSOp interface{ opName() string }

// OpName returns the operation's name on the wire.
func OpName(op FSOp) string { return op.opName() }

type (
	// OpRealPath resolves a path; a missing last component is allowed.
	OpRealPath struct {
		Path string `cbor:"path"`
	}
	// OpStat returns an entry.
	OpStat struct {
		Path          string `cbor:"path"`
		FollowSymlink bool   `cbor:"follow_symlink"`
	}
	// OpSetStat changes attributes.
	OpSetStat struct {
		Path          string `cbor:"path"`
		FollowSymlink bool   `cbor:"follow_symlink"`
		Attrs         Attrs  `cbor:"attrs"`
	}
	// OpList returns every entry of a directory.
	OpList struct {
		Path string `cbor:"path"`
	}
	// OpReadLink returns a symlink's target.
	OpReadLink struct {
		Path string `cbor:"path"`
	}
	// OpSymlink makes a symlink.
	OpSymlink struct {
		Target   string `cbor:"target"`
		LinkPath string `cbor:"link_path"`
	}
	// OpMkdir makes a directory and its parents; Mode is set on the last one.
	OpMkdir struct {
		Path string  `cbor:"path"`
		Mode *uint32 `cbor:"mode"`
	}
	// OpRemove unlinks a file.
	OpRemove struct {
		Path string `cbor:"path"`
	}
	// OpRemoveDir removes a directory.
	OpRemoveDir struct {
		Path      string `cbor:"path"`
		Recursive bool   `cbor:"recursive"`
	}
	// OpCopy copies a regular file with its mode.
	OpCopy struct {
		Src string `cbor:"src"`
		Dst string `cbor:"dst"`
	}
	// OpRename renames.
	OpRename struct {
		Src string `cbor:"src"`
		Dst string `cbor:"dst"`
	}
	// OpOpenFile returns a handle.
	OpOpenFile struct {
		Path    string      `cbor:"path"`
		Options OpenOptions `cbor:"options"`
	}
	// OpOpenDir returns a handle for OpReadDir.
	OpOpenDir struct {
		Path string `cbor:"path"`
	}
	// OpCloseHandle closes a file or directory handle.
	OpCloseHandle struct {
		Handle uint64 `cbor:"handle"`
	}
	// OpRead streams a part of a file; nil Len means to the end.
	OpRead struct {
		Handle uint64  `cbor:"handle"`
		Offset uint64  `cbor:"offset"`
		Len    *uint64 `cbor:"len"`
	}
	// OpWrite takes a stream; with Len its total must match.
	OpWrite struct {
		Handle uint64  `cbor:"handle"`
		Offset uint64  `cbor:"offset"`
		Len    *uint64 `cbor:"len"`
	}
	// OpReadDir returns the next entries of a directory handle; default 128.
	OpReadDir struct {
		Handle uint64  `cbor:"handle"`
		Limit  *uint32 `cbor:"limit"`
	}
	// OpFStat is OpStat of a handle.
	OpFStat struct {
		Handle uint64 `cbor:"handle"`
	}
	// OpFSetStat is OpSetStat of a file handle.
	OpFSetStat struct {
		Handle uint64 `cbor:"handle"`
		Attrs  Attrs  `cbor:"attrs"`
	}
)

func (OpRealPath) opName() string    { return "RealPath" }
func (OpStat) opName() string        { return "Stat" }
func (OpSetStat) opName() string     { return "SetStat" }
func (OpList) opName() string        { return "List" }
func (OpReadLink) opName() string    { return "ReadLink" }
func (OpSymlink) opName() string     { return "Symlink" }
func (OpMkdir) opName() string       { return "Mkdir" }
func (OpRemove) opName() string      { return "Remove" }
func (OpRemoveDir) opName() string   { return "RemoveDir" }
func (OpCopy) opName() string        { return "Copy" }
func (OpRename) opName() string      { return "Rename" }
func (OpOpenFile) opName() string    { return "OpenFile" }
func (OpOpenDir) opName() string     { return "OpenDir" }
func (OpCloseHandle) opName() string { return "CloseHandle" }
func (OpRead) opName() string        { return "Read" }
func (OpWrite) opName() string       { return "Write" }
func (OpReadDir) opName() string     { return "ReadDir" }
func (OpFStat) opName() string       { return "FStat" }
func (OpFSetStat) opName() string    { return "FSetStat" }

func decodeAs[T FSOp](p []byte) (FSOp, error) {
	var op T
	err := record.DecodeFields(p, &op)
	return op, err
}

var opDecoders = map[string]func([]byte) (FSOp, error){
	"RealPath":    decodeAs[OpRealPath],
	"Stat":        decodeAs[OpStat],
	"SetStat":     decodeAs[OpSetStat],
	"List":        decodeAs[OpList],
	"ReadLink":    decodeAs[OpReadLink],
	"Symlink":     decodeAs[OpSymlink],
	"Mkdir":       decodeAs[OpMkdir],
	"Remove":      decodeAs[OpRemove],
	"RemoveDir":   decodeAs[OpRemoveDir],
	"Copy":        decodeAs[OpCopy],
	"Rename":      decodeAs[OpRename],
	"OpenFile":    decodeAs[OpOpenFile],
	"OpenDir":     decodeAs[OpOpenDir],
	"CloseHandle": decodeAs[OpCloseHandle],
	"Read":        decodeAs[OpRead],
	"Write":       decodeAs[OpWrite],
	"ReadDir":     decodeAs[OpReadDir],
	"FStat":       decodeAs[OpFStat],
	"FSetStat":    decodeAs[OpFSetStat],
}

// OpenOptions are all required on the wire, Mode excepted.
type OpenOptions struct {
	Read      bool    `cbor:"read"`
	Write     bool    `cbor:"write"`
	Append    bool    `cbor:"append"`
	Create    bool    `cbor:"create"`
	Truncate  bool    `cbor:"truncate"`
	CreateNew bool    `cbor:"create_new"`
	Mode      *uint32 `cbor:"mode"`
}

// Attrs are the attributes to change; nil leaves one as it is. Times are
// seconds since the epoch.
type Attrs struct {
	Mode  *uint32 `cbor:"mode"`
	UID   *uint32 `cbor:"uid"`
	GID   *uint32 `cbor:"gid"`
	Size  *uint64 `cbor:"size"`
	Atime *int64  `cbor:"atime"`
	Mtime *int64  `cbor:"mtime"`
}

// Kinds of an entry.
const (
	KindFile    = "file"
	KindDir     = "dir"
	KindSymlink = "symlink"
	KindOther   = "other"
)

// Entry describes one file. Mode is the full st_mode; times are seconds since
// the epoch and Modified equals Mtime.
type Entry struct {
	Path     string `cbor:"path"`
	Kind     string `cbor:"kind"`
	Size     uint64 `cbor:"size"`
	Mode     uint32 `cbor:"mode"`
	Modified *int64 `cbor:"modified"`
	UID      uint32 `cbor:"uid"`
	GID      uint32 `cbor:"gid"`
	Atime    *int64 `cbor:"atime"`
	Mtime    *int64 `cbor:"mtime"`
}

// FSResponsePayload answers an operation. Data is nil, or one of FSPath,
// FSStat, FSList and FSHandle.
type FSResponsePayload struct {
	OK    bool
	Error *string
	Data  FSValue
}

// FSValue is the data of a successful response.
type FSValue interface{ valueName() string }

type (
	// FSPath answers OpRealPath and OpReadLink.
	FSPath string
	// FSStat answers OpStat and OpFStat.
	FSStat Entry
	// FSList answers OpList and OpReadDir.
	FSList []Entry
	// FSHandle answers OpOpenFile and OpOpenDir.
	FSHandle uint64
)

func (FSPath) valueName() string   { return "Path" }
func (FSStat) valueName() string   { return "Stat" }
func (FSList) valueName() string   { return "List" }
func (FSHandle) valueName() string { return "Handle" }

// MarshalCBOR encodes {op: {Name: {…}}, bulk?: …}.
func (r FSRequestPayload) MarshalCBOR() ([]byte, error) {
	if r.Op == nil {
		return nil, fmt.Errorf("file system request without an operation")
	}
	b := append([]byte{}, 0xa1, 0x62, 'o', 'p')
	if r.Bulk != nil {
		b[0] = 0xa2
	}
	b, err := appendTagged(b, r.Op.opName(), r.Op)
	if err != nil || r.Bulk == nil {
		return b, err
	}
	offer, err := record.Encode(r.Bulk)
	b = append(b, 0x64, 'b', 'u', 'l', 'k')
	return append(b, offer...), err
}

// appendTagged appends an externally tagged value.
func appendTagged(dst []byte, name string, v any) ([]byte, error) {
	inner, err := record.Encode(v)
	if err != nil {
		return dst, err
	}
	dst = record.AppendHead(append(dst, 0xa1), record.Text, uint64(len(name)))
	return append(append(dst, name...), inner...), nil
}

// tagged splits an externally tagged value: a definite map of one text key.
func tagged(p []byte) (name string, inner []byte, err error) {
	c := record.Cursor{B: p}
	m, n, err := c.Head()
	if err != nil {
		return "", nil, err
	}
	if m != record.Map || n != 1 {
		return "", nil, record.Malformed("not a map of one variant")
	}
	key, err := c.String(record.Text)
	return string(key), c.B[c.Pos:], err
}

type rawFSRequest struct {
	Op   cbor.RawMessage `cbor:"op"`
	Bulk *BulkOffer      `cbor:"bulk,omitempty"`
}

func (r *FSRequestPayload) decodePayload(p []byte) error {
	var raw rawFSRequest
	if err := record.DecodeStruct(p, &raw); err != nil {
		return err
	}
	name, inner, err := tagged(raw.Op)
	if err != nil {
		return err
	}
	decode := opDecoders[name]
	if decode == nil {
		return record.Malformed("unknown file system operation %q", name)
	}
	if r.Op, err = decode(inner); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.Bulk = raw.Bulk
	return nil
}

// MarshalCBOR encodes {ok, error, data}; all three keys are always there.
func (r FSResponsePayload) MarshalCBOR() ([]byte, error) {
	b := []byte{0xa3, 0x62, 'o', 'k', 0xf4, 0x65, 'e', 'r', 'r', 'o', 'r'}
	if r.OK {
		b[4] = 0xf5
	}
	if r.Error == nil {
		b = append(b, 0xf6)
	} else {
		b = append(record.AppendHead(b, record.Text, uint64(len(*r.Error))), *r.Error...)
	}
	b = append(b, 0x64, 'd', 'a', 't', 'a')
	switch v := r.Data.(type) {
	case nil:
		return append(b, 0xf6), nil
	case FSStat:
		return appendTagged(b, v.valueName(), Entry(v))
	case FSList:
		return appendTagged(b, v.valueName(), []Entry(v))
	default:
		return appendTagged(b, v.valueName(), v)
	}
}

type rawFSResponse struct {
	OK    bool            `cbor:"ok"`
	Error *string         `cbor:"error"`
	Data  cbor.RawMessage `cbor:"data" wire:"optional"`
}

func (r *FSResponsePayload) decodePayload(p []byte) error {
	var raw rawFSResponse
	if err := record.DecodeStruct(p, &raw); err != nil {
		return err
	}
	*r = FSResponsePayload{OK: raw.OK, Error: raw.Error}
	if len(raw.Data) == 0 || raw.Data[0] == 0xf6 {
		return nil
	}
	name, inner, err := tagged(raw.Data)
	if err != nil {
		return err
	}
	switch name {
	case "Path":
		r.Data, err = decodeValue[FSPath](inner)
	case "Stat":
		var e Entry
		err = record.DecodeFields(inner, &e)
		r.Data = FSStat(e)
	case "List":
		r.Data, err = decodeValue[FSList](inner)
	case "Handle":
		r.Data, err = decodeValue[FSHandle](inner)
	default:
		err = record.Malformed("unknown file system result %q", name)
	}
	return err
}

func decodeValue[T FSValue](p []byte) (FSValue, error) {
	var v T
	err := record.Decode(p, &v)
	return v, err
}
