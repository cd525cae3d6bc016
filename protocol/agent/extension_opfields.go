package agent

var nodeOps = map[string]func() NodeOp{
	"attach":      func() NodeOp { return new(NodeAttach) },
	"session":     func() NodeOp { return new(NodeSession) },
	"join":        func() NodeOp { return new(NodeJoin) },
	"key":         func() NodeOp { return new(NodeKey) },
	"recall":      func() NodeOp { return new(NodeRecall) },
	"lookup":      func() NodeOp { return new(NodeLookup) },
	"forget":      func() NodeOp { return new(NodeForget) },
	"getattr":     func() NodeOp { return new(NodeGetAttr) },
	"setattr":     func() NodeOp { return new(NodeSetAttr) },
	"readlink":    func() NodeOp { return new(NodeReadLink) },
	"mkdir":       func() NodeOp { return new(NodeMkdir) },
	"mknod":       func() NodeOp { return new(NodeMknod) },
	"symlink":     func() NodeOp { return new(NodeSymlink) },
	"link":        func() NodeOp { return new(NodeLink) },
	"unlink":      func() NodeOp { return new(NodeUnlink) },
	"rmdir":       func() NodeOp { return new(NodeRmdir) },
	"rename":      func() NodeOp { return new(NodeRename) },
	"open":        func() NodeOp { return new(NodeOpen) },
	"create":      func() NodeOp { return new(NodeCreate) },
	"close":       func() NodeOp { return new(NodeClose) },
	"flush":       func() NodeOp { return new(NodeFlush) },
	"sync":        func() NodeOp { return new(NodeSync) },
	"syncfs":      func() NodeOp { return new(NodeSyncFS) },
	"read":        func() NodeOp { return new(NodeRead) },
	"write":       func() NodeOp { return new(NodeWrite) },
	"readstream":  func() NodeOp { return new(NodeReadStream) },
	"writestream": func() NodeOp { return new(NodeWriteStream) },
	"readdir":     func() NodeOp { return new(NodeReadDir) },
	"statfs":      func() NodeOp { return new(NodeStatFS) },
	"getxattr":    func() NodeOp { return new(NodeGetXattr) },
	"setxattr":    func() NodeOp { return new(NodeSetXattr) },
	"listxattr":   func() NodeOp { return new(NodeListXattr) },
	"removexattr": func() NodeOp { return new(NodeRemoveXattr) },
	"fallocate":   func() NodeOp { return new(NodeAllocate) },
	"seek":        func() NodeOp { return new(NodeSeek) },
	"copyrange":   func() NodeOp { return new(NodeCopyRange) },
	"lock":        func() NodeOp { return new(NodeLock) },
	"testlock":    func() NodeOp { return new(NodeTestLock) },
}

func (*NodeAttach) opName() string      { return "attach" }
func (*NodeSession) opName() string     { return "session" }
func (*NodeJoin) opName() string        { return "join" }
func (*NodeKey) opName() string         { return "key" }
func (*NodeRecall) opName() string      { return "recall" }
func (*NodeLookup) opName() string      { return "lookup" }
func (*NodeForget) opName() string      { return "forget" }
func (*NodeGetAttr) opName() string     { return "getattr" }
func (*NodeSetAttr) opName() string     { return "setattr" }
func (*NodeReadLink) opName() string    { return "readlink" }
func (*NodeMkdir) opName() string       { return "mkdir" }
func (*NodeMknod) opName() string       { return "mknod" }
func (*NodeSymlink) opName() string     { return "symlink" }
func (*NodeLink) opName() string        { return "link" }
func (*NodeUnlink) opName() string      { return "unlink" }
func (*NodeRmdir) opName() string       { return "rmdir" }
func (*NodeRename) opName() string      { return "rename" }
func (*NodeOpen) opName() string        { return "open" }
func (*NodeCreate) opName() string      { return "create" }
func (*NodeClose) opName() string       { return "close" }
func (*NodeFlush) opName() string       { return "flush" }
func (*NodeSync) opName() string        { return "sync" }
func (*NodeSyncFS) opName() string      { return "syncfs" }
func (*NodeRead) opName() string        { return "read" }
func (*NodeWrite) opName() string       { return "write" }
func (*NodeReadStream) opName() string  { return "readstream" }
func (*NodeWriteStream) opName() string { return "writestream" }
func (*NodeReadDir) opName() string     { return "readdir" }
func (*NodeStatFS) opName() string      { return "statfs" }
func (*NodeGetXattr) opName() string    { return "getxattr" }
func (*NodeSetXattr) opName() string    { return "setxattr" }
func (*NodeListXattr) opName() string   { return "listxattr" }
func (*NodeRemoveXattr) opName() string { return "removexattr" }
func (*NodeAllocate) opName() string    { return "fallocate" }
func (*NodeSeek) opName() string        { return "seek" }
func (*NodeCopyRange) opName() string   { return "copyrange" }
func (*NodeLock) opName() string        { return "lock" }
func (*NodeTestLock) opName() string    { return "testlock" }

func (*NodeAttach) Result() NodeResult      { return new(NodeEntryResult) }
func (*NodeSession) Result() NodeResult     { return new(NodeBytesResult) }
func (*NodeJoin) Result() NodeResult        { return new(NodeNoResult) }
func (*NodeKey) Result() NodeResult         { return new(NodeBytesResult) }
func (*NodeRecall) Result() NodeResult      { return new(NodeEntryResult) }
func (*NodeLookup) Result() NodeResult      { return new(NodeEntryResult) }
func (*NodeForget) Result() NodeResult      { return new(NodeNoResult) }
func (*NodeGetAttr) Result() NodeResult     { return new(NodeAttrResult) }
func (*NodeSetAttr) Result() NodeResult     { return new(NodeAttrResult) }
func (*NodeReadLink) Result() NodeResult    { return new(NodeBytesResult) }
func (*NodeMkdir) Result() NodeResult       { return new(NodeEntryResult) }
func (*NodeMknod) Result() NodeResult       { return new(NodeEntryResult) }
func (*NodeSymlink) Result() NodeResult     { return new(NodeEntryResult) }
func (*NodeLink) Result() NodeResult        { return new(NodeEntryResult) }
func (*NodeUnlink) Result() NodeResult      { return new(NodeNoResult) }
func (*NodeRmdir) Result() NodeResult       { return new(NodeNoResult) }
func (*NodeRename) Result() NodeResult      { return new(NodeNoResult) }
func (*NodeOpen) Result() NodeResult        { return new(NodeHandleResult) }
func (*NodeCreate) Result() NodeResult      { return new(NodeCreatedResult) }
func (*NodeClose) Result() NodeResult       { return new(NodeNoResult) }
func (*NodeFlush) Result() NodeResult       { return new(NodeNoResult) }
func (*NodeSync) Result() NodeResult        { return new(NodeNoResult) }
func (*NodeSyncFS) Result() NodeResult      { return new(NodeNoResult) }
func (*NodeRead) Result() NodeResult        { return new(NodeBytesResult) }
func (*NodeWrite) Result() NodeResult       { return new(NodeNumberResult) }
func (*NodeReadStream) Result() NodeResult  { return new(NodeNumberResult) }
func (*NodeWriteStream) Result() NodeResult { return new(NodeNumberResult) }
func (*NodeReadDir) Result() NodeResult     { return new(NodeListResult) }
func (*NodeStatFS) Result() NodeResult      { return new(NodeStatFSResult) }
func (*NodeGetXattr) Result() NodeResult    { return new(NodeBytesResult) }
func (*NodeSetXattr) Result() NodeResult    { return new(NodeNoResult) }
func (*NodeListXattr) Result() NodeResult   { return new(NodeBytesResult) }
func (*NodeRemoveXattr) Result() NodeResult { return new(NodeNoResult) }
func (*NodeAllocate) Result() NodeResult    { return new(NodeNoResult) }
func (*NodeSeek) Result() NodeResult        { return new(NodeNumberResult) }
func (*NodeCopyRange) Result() NodeResult   { return new(NodeNumberResult) }
func (*NodeLock) Result() NodeResult        { return new(NodeNoResult) }
func (*NodeTestLock) Result() NodeResult    { return new(NodeLockResult) }

func (x *NodeAttach) fields(w *walker) {
	w.bytes("path", &x.Path)
}

func (*NodeSession) fields(*walker) {}

func (x *NodeJoin) fields(w *walker) {
	w.bytes("session", &x.Session)
}

func (x *NodeKey) fields(w *walker) {
	w.u64("node", &x.Node)
}

func (x *NodeRecall) fields(w *walker) {
	w.u64("base", &x.Base)
	w.bytes("key", &x.Key)
}

func (x *NodeLookup) fields(w *walker) {
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
}

func (x *NodeForget) fields(w *walker) {
	list(w, "nodes", "count", &x.Nodes)
}

func (x *NodeGetAttr) fields(w *walker) {
	w.u64("target", &x.Target)
}

func (x *NodeSetAttr) fields(w *walker) {
	w.u64("target", &x.Target)
	w.u32("valid", &x.Valid)
	w.u32("mode", &x.Mode)
	w.u32("uid", &x.UID)
	w.u32("gid", &x.GID)
	w.u64("size", &x.Size)
	w.i64("atime_s", &x.AtimeSec)
	w.u32("atime_ns", &x.AtimeNsec)
	w.i64("mtime_s", &x.MtimeSec)
	w.u32("mtime_ns", &x.MtimeNsec)
}

func (x *NodeReadLink) fields(w *walker) {
	w.u64("node", &x.Node)
}

func (x *NodeMkdir) fields(w *walker) {
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
	w.u32("mode", &x.Mode)
}

func (x *NodeMknod) fields(w *walker) {
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
	w.u32("mode", &x.Mode)
	w.u64("rdev", &x.Rdev)
}

func (x *NodeSymlink) fields(w *walker) {
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
	w.bytes("target", &x.Target)
}

func (x *NodeLink) fields(w *walker) {
	w.u64("node", &x.Node)
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
}

func (x *NodeUnlink) fields(w *walker) {
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
}

func (x *NodeRmdir) fields(w *walker) {
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
}

func (x *NodeRename) fields(w *walker) {
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
	w.u64("new_dir", &x.NewDir)
	w.bytes("new_name", &x.NewName)
	w.u32("flags", &x.Flags)
}

func (x *NodeOpen) fields(w *walker) {
	w.u64("node", &x.Node)
	w.u32("flags", &x.Flags)
}

func (x *NodeCreate) fields(w *walker) {
	w.u64("dir", &x.Dir)
	w.bytes("name", &x.Name)
	w.u32("flags", &x.Flags)
	w.u32("mode", &x.Mode)
}

func (x *NodeClose) fields(w *walker) {
	w.u64("handle", &x.Handle)
}

func (x *NodeFlush) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u64("owner", &x.Owner)
}

func (x *NodeSync) fields(w *walker) {
	w.u64("target", &x.Target)
	w.bool("data_only", &x.DataOnly)
}

func (x *NodeSyncFS) fields(w *walker) {
	w.u64("node", &x.Node)
}

func (x *NodeRead) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u64("offset", &x.Offset)
	w.u32("len", &x.Len)
}

func (x *NodeWrite) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u64("offset", &x.Offset)
	w.bytes("data", &x.Data)
	w.u32("flags", &x.Flags)
}

func (x *NodeReadStream) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u64("offset", &x.Offset)
	w.optional("len", &x.Len)
}

func (x *NodeWriteStream) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u64("offset", &x.Offset)
	w.optional("len", &x.Len)
	w.u32("flags", &x.Flags)
}

func (x *NodeReadDir) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u64("offset", &x.Offset)
	w.u32("size", &x.Size)
	w.u32("flags", &x.Flags)
}

func (x *NodeStatFS) fields(w *walker) {
	w.u64("node", &x.Node)
}

func (x *NodeGetXattr) fields(w *walker) {
	w.u64("node", &x.Node)
	w.bytes("name", &x.Name)
}

func (x *NodeSetXattr) fields(w *walker) {
	w.u64("node", &x.Node)
	w.bytes("name", &x.Name)
	w.bytes("value", &x.Value)
	w.u32("flags", &x.Flags)
}

func (x *NodeListXattr) fields(w *walker) {
	w.u64("node", &x.Node)
}

func (x *NodeRemoveXattr) fields(w *walker) {
	w.u64("node", &x.Node)
	w.bytes("name", &x.Name)
}

func (x *NodeAllocate) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u32("mode", &x.Mode)
	w.u64("offset", &x.Offset)
	w.u64("len", &x.Len)
}

func (x *NodeSeek) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u64("offset", &x.Offset)
	w.u32("whence", &x.Whence)
}

func (x *NodeCopyRange) fields(w *walker) {
	w.u64("from", &x.From)
	w.u64("from_offset", &x.FromOffset)
	w.u64("to", &x.To)
	w.u64("to_offset", &x.ToOffset)
	w.u64("len", &x.Len)
}

func (x *NodeLock) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u32("kind", &x.Kind)
	w.u32("type", &x.Type)
	w.u64("start", &x.Start)
	w.u64("len", &x.Len)
	w.u64("owner", &x.Owner)
	w.bool("wait", &x.Wait)
}

func (x *NodeTestLock) fields(w *walker) {
	w.u64("handle", &x.Handle)
	w.u32("type", &x.Type)
	w.u64("start", &x.Start)
	w.u64("len", &x.Len)
	w.u64("owner", &x.Owner)
}
