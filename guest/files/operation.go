package files

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"msb/guest/port"
	"msb/protocol/agent"
)

var errOwnerGone = errors.New("the client is gone")

var errNameTooLong = port.OSError(syscall.ENAMETOOLONG)

// maxPath is the longest text a queued operation may hold per path, in bytes. The kernel refuses paths from 4096 on.
const maxPath = unix.PathMax

// opWord is the word in front of an operation's error text.
func opWord(op agent.FSOp) string {
	switch op.(type) {
	case agent.OpRealPath:
		return "realpath"
	case agent.OpStat:
		return "stat"
	case agent.OpSetStat:
		return "setstat"
	case agent.OpList, agent.OpReadDir:
		return "readdir"
	case agent.OpReadLink:
		return "readlink"
	case agent.OpSymlink:
		return "symlink"
	case agent.OpMkdir:
		return "mkdir"
	case agent.OpRemove:
		return "remove"
	case agent.OpRemoveDir:
		return "remove_dir"
	case agent.OpCopy:
		return "copy"
	case agent.OpRename:
		return "rename"
	case agent.OpOpenFile:
		return "open"
	case agent.OpOpenDir:
		return "opendir"
	case agent.OpCloseHandle:
		return "close"
	case agent.OpRead:
		return "read"
	case agent.OpWrite:
		return "write"
	case agent.OpFStat:
		return "fstat"
	case agent.OpFSetStat:
		return "fsetstat"
	}
	return "filesystem"
}

// paths returns the path texts of op.
func paths(op agent.FSOp) [2]string {
	switch op := op.(type) {
	case agent.OpRealPath:
		return [2]string{op.Path}
	case agent.OpStat:
		return [2]string{op.Path}
	case agent.OpSetStat:
		return [2]string{op.Path}
	case agent.OpList:
		return [2]string{op.Path}
	case agent.OpReadLink:
		return [2]string{op.Path}
	case agent.OpSymlink:
		return [2]string{op.Target, op.LinkPath}
	case agent.OpMkdir:
		return [2]string{op.Path}
	case agent.OpRemove:
		return [2]string{op.Path}
	case agent.OpRemoveDir:
		return [2]string{op.Path}
	case agent.OpCopy:
		return [2]string{op.Src, op.Dst}
	case agent.OpRename:
		return [2]string{op.Src, op.Dst}
	case agent.OpOpenFile:
		return [2]string{op.Path}
	case agent.OpOpenDir:
		return [2]string{op.Path}
	}
	return [2]string{}
}

func tooLong(op agent.FSOp) bool {
	p := paths(op)
	return len(p[0]) > maxPath || len(p[1]) > maxPath
}

// perform runs one operation that does not stream. The error's text is what the client gets. after, if not nil, is
// called when the answer has been queued.
func (s *Service) perform(o *owner, op agent.FSOp) (value agent.FSValue, after func(), err error) {
	for _, p := range paths(op) {
		if strings.IndexByte(p, 0) >= 0 {
			return nil, nil, errors.New(opWord(op) + ": file name contained an unexpected NUL byte")
		}
	}
	switch op := op.(type) {
	case agent.OpRealPath:
		value, err = realPath(op.Path)
	case agent.OpStat:
		value, err = stat(op.Path, op.FollowSymlink)
	case agent.OpSetStat:
		err = setPathAttrs(op.Path, op.FollowSymlink, op.Attrs)
	case agent.OpList:
		value, after, err = s.list(o, op.Path)
	case agent.OpReadLink:
		value, err = readLink(op.Path)
	case agent.OpSymlink:
		err = unix.Symlink(op.Target, op.LinkPath)
	case agent.OpMkdir:
		return nil, nil, makeDir(op.Path, op.Mode)
	case agent.OpRemove:
		err = unix.Unlink(op.Path)
	case agent.OpRemoveDir:
		err = removeDir(o.ctx, op.Path, op.Recursive)
	case agent.OpCopy:
		err = copyFile(o.ctx, op.Src, op.Dst)
	case agent.OpRename:
		err = unix.Rename(op.Src, op.Dst)
	case agent.OpOpenFile:
		value, err = s.openFile(o, op.Path, op.Options)
	case agent.OpOpenDir:
		value, err = s.openDir(o, op.Path)
	case agent.OpCloseHandle:
		var h handle
		if h, err = s.handles.remove(o, op.Handle); err == nil {
			err = h.close()
		}
	case agent.OpReadDir:
		value, after, err = s.readDir(o, op.Handle, op.Limit)
	case agent.OpFStat:
		value, err = s.fstat(o, op.Handle)
	case agent.OpFSetStat:
		err = s.setHandleAttrs(o, op.Handle, op.Attrs)
	default:
		err = fmt.Errorf("operation %s is not served", agent.OpName(op))
	}
	if err != nil {
		return nil, after, failed(opWord(op), err)
	}
	return value, after, nil
}

// stepError is the failure of one step of an operation: "chmod: Operation not permitted (os error 1)".
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + errorText(e.err) }

// Unwrap returns what failed.
func (e *stepError) Unwrap() error { return e.err }

// failed puts word in front of err, which may be nil.
func failed(word string, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{word, err}
}

// errorText prints an errno in the form that clients parse and any other error as it is.
func errorText(err error) string {
	if step, ok := err.(*stepError); ok {
		return step.Error()
	}
	return port.OSError(err)
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
