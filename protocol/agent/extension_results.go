package agent

// Results of the operations of msb.fs.
type (
	// NodeNoResult is the result of an operation that has none.
	NodeNoResult struct{}

	// NodeEntryResult is a node, counted once more as looked up, and its
	// attributes.
	NodeEntryResult struct {
		Node NodeRef
		Attr NodeAttr
	}

	// NodeAttrResult is the attributes of a file.
	NodeAttrResult struct {
		Attr NodeAttr
	}

	// NodeHandleResult is an open handle.
	NodeHandleResult struct {
		Handle NodeRef
	}

	// NodeCreatedResult is a node as NodeEntryResult and a handle on it.
	NodeCreatedResult struct {
		Node   NodeRef
		Attr   NodeAttr
		Handle NodeRef
	}

	// NodeBytesResult is a byte string.
	NodeBytesResult struct {
		Data []byte
	}

	// NodeNumberResult is a count of bytes or an offset.
	NodeNumberResult struct {
		N uint64
	}

	// NodeListResult is a part of a directory.
	NodeListResult struct {
		Entries []NodeDirEntry
	}

	// NodeStatFSResult describes a file system. Blocks are of Frsize bytes.
	NodeStatFSResult struct {
		Type    uint64
		Bsize   uint32
		Frsize  uint32
		Blocks  uint64
		Bfree   uint64
		Bavail  uint64
		Files   uint64
		Ffree   uint64
		Namelen uint32
		Flags   uint64
	}

	// NodeLockResult is a lock. PID is 0 when it is not one process of the guest
	// that holds it.
	NodeLockResult struct {
		Type  uint32
		Start uint64
		Len   uint64
		PID   uint32
	}
)

// Parts of operations and results.
type (
	// NodeCount is a number of lookups of a node.
	NodeCount struct {
		Node NodeRef
		N    uint64
	}

	// NodeAttr is what stat tells of a file. Mode is the whole st_mode, Blocks
	// are of 512 bytes, Dev and Rdev are Linux device numbers. Times are seconds
	// since the epoch and nanoseconds; Btime, the birth, is 0 when the file
	// system does not know it.
	NodeAttr struct {
		Ino       uint64
		Dev       uint64
		Mode      uint32
		Nlink     uint32
		UID       uint32
		GID       uint32
		Rdev      uint64
		Size      uint64
		Blocks    uint64
		Blksize   uint32
		AtimeSec  int64
		AtimeNsec uint32
		MtimeSec  int64
		MtimeNsec uint32
		CtimeSec  int64
		CtimeNsec uint32
		BtimeSec  int64
		BtimeNsec uint32
	}

	// NodeDirEntry is one name of a directory. Type is that of st_mode, 0 when
	// unknown; Offset is where the listing goes on after it. Attr is there with
	// NodeDirAttr and Node with NodeDirNode, unless the file has gone in
	// between: Attr.Ino is 0 then. A node is counted as looked up.
	NodeDirEntry struct {
		Name   []byte
		Ino    uint64
		Type   uint32
		Offset uint64
		Node   NodeRef
		Attr   NodeAttr
	}
)

// Bits of NodeSetAttr.Valid.
const (
	NodeSetMode     uint32 = 1 << 0
	NodeSetUID      uint32 = 1 << 1
	NodeSetGID      uint32 = 1 << 2
	NodeSetSize     uint32 = 1 << 3
	NodeSetAtime    uint32 = 1 << 4
	NodeSetMtime    uint32 = 1 << 5
	NodeSetAtimeNow uint32 = 1 << 7 // in place of NodeSetAtime
	NodeSetMtimeNow uint32 = 1 << 8
)

// Flags of NodeOpen and NodeCreate: those of Linux on x86-64, whatever the
// guest is. Others are refused with EINVAL.
const (
	NodeReadOnly  uint32 = 0
	NodeWriteOnly uint32 = 1
	NodeReadWrite uint32 = 2
	NodeExclusive uint32 = 0o200 // NodeCreate only
	NodeTruncate  uint32 = 0o1000
	NodeAppend    uint32 = 0o2000
	NodeDataSync  uint32 = 0o10000
	NodeDirect    uint32 = 0o40000
	NodeDirectory uint32 = 0o200000 // NodeOpen only
	NodeNoAtime   uint32 = 0o1000000
	NodeFileSync  uint32 = 0o4010000
)

// NodeKillPriv in the flags of a write takes set-id bits away as a write of an
// unprivileged process does.
const NodeKillPriv uint32 = 1

// Flags of NodeReadDir.
const (
	NodeDirAttr uint32 = 1 // attributes
	NodeDirNode uint32 = 2 // nodes and attributes
)

// Values of NodeSeek.Whence.
const (
	NodeSeekData uint32 = 3
	NodeSeekHole uint32 = 4
)

// Kinds and types of locks.
const (
	NodePosix uint32 = 0
	NodeFlock uint32 = 1

	NodeReadLock  uint32 = 0
	NodeWriteLock uint32 = 1
	NodeUnlock    uint32 = 2
)

func (*NodeNoResult) resultName() string      { return "none" }
func (*NodeEntryResult) resultName() string   { return "entry" }
func (*NodeAttrResult) resultName() string    { return "attributes" }
func (*NodeHandleResult) resultName() string  { return "handle" }
func (*NodeCreatedResult) resultName() string { return "created" }
func (*NodeBytesResult) resultName() string   { return "bytes" }
func (*NodeNumberResult) resultName() string  { return "number" }
func (*NodeListResult) resultName() string    { return "list" }
func (*NodeStatFSResult) resultName() string  { return "statfs" }
func (*NodeLockResult) resultName() string    { return "lock" }

func (*NodeNoResult) fields(*walker) {}

func (x *NodeEntryResult) fields(w *walker) {
	w.u64("node", &x.Node)
	w.nested("attr", "attr", &x.Attr)
}

func (x *NodeAttrResult) fields(w *walker) {
	w.nested("attr", "attr", &x.Attr)
}

func (x *NodeHandleResult) fields(w *walker) {
	w.u64("handle", &x.Handle)
}

func (x *NodeCreatedResult) fields(w *walker) {
	w.u64("node", &x.Node)
	w.nested("attr", "attr", &x.Attr)
	w.u64("handle", &x.Handle)
}

func (x *NodeBytesResult) fields(w *walker) {
	w.bytes("data", &x.Data)
}

func (x *NodeNumberResult) fields(w *walker) {
	w.u64("n", &x.N)
}

func (x *NodeListResult) fields(w *walker) {
	list(w, "entries", "direntry", &x.Entries)
}

func (x *NodeStatFSResult) fields(w *walker) {
	w.u64("type", &x.Type)
	w.u32("bsize", &x.Bsize)
	w.u32("frsize", &x.Frsize)
	w.u64("blocks", &x.Blocks)
	w.u64("bfree", &x.Bfree)
	w.u64("bavail", &x.Bavail)
	w.u64("files", &x.Files)
	w.u64("ffree", &x.Ffree)
	w.u32("namelen", &x.Namelen)
	w.u64("flags", &x.Flags)
}

func (x *NodeLockResult) fields(w *walker) {
	w.u32("type", &x.Type)
	w.u64("start", &x.Start)
	w.u64("len", &x.Len)
	w.u32("pid", &x.PID)
}

func (x *NodeCount) fields(w *walker) {
	w.u64("node", &x.Node)
	w.u64("n", &x.N)
}

func (x *NodeAttr) fields(w *walker) {
	w.u64("ino", &x.Ino)
	w.u64("dev", &x.Dev)
	w.u32("mode", &x.Mode)
	w.u32("nlink", &x.Nlink)
	w.u32("uid", &x.UID)
	w.u32("gid", &x.GID)
	w.u64("rdev", &x.Rdev)
	w.u64("size", &x.Size)
	w.u64("blocks", &x.Blocks)
	w.u32("blksize", &x.Blksize)
	w.i64("atime_s", &x.AtimeSec)
	w.u32("atime_ns", &x.AtimeNsec)
	w.i64("mtime_s", &x.MtimeSec)
	w.u32("mtime_ns", &x.MtimeNsec)
	w.i64("ctime_s", &x.CtimeSec)
	w.u32("ctime_ns", &x.CtimeNsec)
	w.i64("btime_s", &x.BtimeSec)
	w.u32("btime_ns", &x.BtimeNsec)
}

func (x *NodeDirEntry) fields(w *walker) {
	w.bytes("name", &x.Name)
	w.u64("ino", &x.Ino)
	w.u32("type", &x.Type)
	w.u64("offset", &x.Offset)
	w.u64("node", &x.Node)
	w.nested("attr", "attr", &x.Attr)
}
