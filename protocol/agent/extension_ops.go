package agent

// The operations of msb.fs, version 1. Names are one component: neither empty,
// "." nor "..", without '/' and NUL. Modes, flags without names here and error
// numbers are those of Linux.
type (
	// NodeAttach opens a path of the guest, symlinks followed, as a node to
	// start from.
	NodeAttach struct {
		Path []byte
	}

	// NodeSession returns the secret name of the connection's table of nodes and
	// handles, for NodeJoin.
	NodeSession struct{}

	// NodeJoin makes a connection that has no nodes yet share the table of
	// another one. The table lives as long as one of them.
	NodeJoin struct {
		Session []byte
	}

	// NodeKey returns what NodeRecall finds the file by: across connections,
	// renames and restarts of the guest, as long as it exists.
	NodeKey struct {
		Node NodeRef
	}

	// NodeRecall returns the node of a key. Base is any node of the same file
	// system; ESTALE says that the file is gone.
	NodeRecall struct {
		Base NodeRef
		Key  []byte
	}

	// NodeLookup finds one name in a directory. A symlink is not followed.
	NodeLookup struct {
		Dir  NodeRef
		Name []byte
	}

	// NodeForget takes back lookups: what each result with a node has counted. A
	// node without any is dropped.
	NodeForget struct {
		Nodes []NodeCount
	}

	// NodeGetAttr returns attributes of a node or handle.
	NodeGetAttr struct {
		Target NodeRef
	}

	// NodeSetAttr changes the attributes that Valid names, of a node or handle,
	// and returns all. Of a change that fails, a part may be done.
	NodeSetAttr struct {
		Target    NodeRef
		Valid     uint32
		Mode      uint32
		UID       uint32
		GID       uint32
		Size      uint64
		AtimeSec  int64
		AtimeNsec uint32
		MtimeSec  int64
		MtimeNsec uint32
	}

	// NodeReadLink returns the target of a symlink.
	NodeReadLink struct {
		Node NodeRef
	}

	// NodeMkdir makes a directory. No umask applies.
	NodeMkdir struct {
		Dir  NodeRef
		Name []byte
		Mode uint32
	}

	// NodeMknod makes a file, FIFO, socket or device: Mode is a whole st_mode.
	// No umask applies.
	NodeMknod struct {
		Dir  NodeRef
		Name []byte
		Mode uint32
		Rdev uint64
	}

	// NodeSymlink makes a symlink.
	NodeSymlink struct {
		Dir    NodeRef
		Name   []byte
		Target []byte
	}

	// NodeLink gives a node another name.
	NodeLink struct {
		Node NodeRef
		Dir  NodeRef
		Name []byte
	}

	// NodeUnlink takes a name away that is no directory's.
	NodeUnlink struct {
		Dir  NodeRef
		Name []byte
	}

	// NodeRmdir removes an empty directory.
	NodeRmdir struct {
		Dir  NodeRef
		Name []byte
	}

	// NodeRename renames. Flags are those of renameat2.
	NodeRename struct {
		Dir     NodeRef
		Name    []byte
		NewDir  NodeRef
		NewName []byte
		Flags   uint32
	}

	// NodeOpen opens a file or directory. FIFOs, sockets and devices are refused
	// with ENXIO.
	NodeOpen struct {
		Node  NodeRef
		Flags uint32
	}

	// NodeCreate makes a file, or with no NodeExclusive opens one that is there,
	// and opens it. No umask applies.
	NodeCreate struct {
		Dir   NodeRef
		Name  []byte
		Flags uint32
		Mode  uint32
	}

	// NodeClose closes a handle and returns an error of a write that came late.
	// The handle is gone also then.
	NodeClose struct {
		Handle NodeRef
	}

	// NodeFlush returns an error of a write that came late, and drops the POSIX
	// locks of Owner, as a close of one of its descriptors does.
	NodeFlush struct {
		Handle NodeRef
		Owner  uint64
	}

	// NodeSync returns when a node or handle is on the disk, with DataOnly as
	// fdatasync.
	NodeSync struct {
		Target   NodeRef
		DataOnly bool
	}

	// NodeSyncFS returns when the file system of a node is on the disk.
	NodeSyncFS struct {
		Node NodeRef
	}

	// NodeRead returns at most MaxNodeInline bytes. Fewer than Len is the end of
	// the file.
	NodeRead struct {
		Handle NodeRef
		Offset uint64
		Len    uint32
	}

	// NodeWrite writes at most MaxNodeInline bytes, all or an error. A handle
	// with NodeAppend ignores Offset.
	NodeWrite struct {
		Handle NodeRef
		Offset uint64
		Data   []byte
		Flags  uint32
	}

	// NodeReadStream sends raw records from Offset, Len bytes or to the end of
	// the file.
	NodeReadStream struct {
		Handle NodeRef
		Offset uint64
		Len    *uint64
	}

	// NodeWriteStream takes raw records from Offset on; with Len exactly as many
	// bytes.
	NodeWriteStream struct {
		Handle NodeRef
		Offset uint64
		Len    *uint64
		Flags  uint32
	}

	// NodeReadDir returns entries after Offset, 0 or one of an entry of that
	// directory, of Size bytes at most (MaxNodeInline). No entries are the end.
	// . and .. are left out.
	NodeReadDir struct {
		Handle NodeRef
		Offset uint64
		Size   uint32
		Flags  uint32
	}

	// NodeStatFS describes the file system of a node.
	NodeStatFS struct {
		Node NodeRef
	}

	// NodeGetXattr returns an extended attribute of a node.
	NodeGetXattr struct {
		Node NodeRef
		Name []byte
	}

	// NodeSetXattr sets an extended attribute. Flags are those of setxattr.
	NodeSetXattr struct {
		Node  NodeRef
		Name  []byte
		Value []byte
		Flags uint32
	}

	// NodeListXattr returns the names of extended attributes, each followed by
	// NUL.
	NodeListXattr struct {
		Node NodeRef
	}

	// NodeRemoveXattr removes an extended attribute.
	NodeRemoveXattr struct {
		Node NodeRef
		Name []byte
	}

	// NodeAllocate is fallocate. Mode is fallocate's.
	NodeAllocate struct {
		Handle NodeRef
		Mode   uint32
		Offset uint64
		Len    uint64
	}

	// NodeSeek finds data or a hole: Whence is NodeSeekData or NodeSeekHole.
	NodeSeek struct {
		Handle NodeRef
		Offset uint64
		Whence uint32
	}

	// NodeCopyRange copies within the guest and returns how much, which may be
	// less than Len; 0 is the end of the source.
	NodeCopyRange struct {
		From       NodeRef
		FromOffset uint64
		To         NodeRef
		ToOffset   uint64
		Len        uint64
	}

	// NodeLock sets or drops a POSIX lock of Owner on Len bytes from Start (0:
	// to the end, whatever that will be), or the flock of a handle with Kind
	// NodeFlock. Wait waits for it, until msb.fs.cancel; else EAGAIN.
	NodeLock struct {
		Handle NodeRef
		Kind   uint32
		Type   uint32
		Start  uint64
		Len    uint64
		Owner  uint64
		Wait   bool
	}

	// NodeTestLock returns a lock that keeps Owner from its POSIX lock, or type
	// NodeUnlock when there is none.
	NodeTestLock struct {
		Handle NodeRef
		Type   uint32
		Start  uint64
		Len    uint64
		Owner  uint64
	}
)
