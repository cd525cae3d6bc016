package warden

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The agent and the warden exchange messages over a pair of SOCK_SEQPACKET sockets: a request with at most one
// descriptor, an answer with at most four.

// maxMessage is more than a command of the largest size encodes to.
const maxMessage = 160 << 10

// Operations.
const (
	opStart  = "start"  // a command; the working directory comes along
	opSync   = "sync"   // write a file system out; a folder of it comes along
	opFreeze = "freeze" // the same, and stop it
	opThaw   = "thaw"
	opClock  = "clock"
)

// request is what the agent asks for.
type request struct {
	Op      string   `json:"op"`
	Argv    []string `json:"argv,omitempty"`
	Env     []string `json:"env,omitempty"` // over the fixed ones
	Seconds int      `json:"seconds,omitempty"`
	Micro   int64    `json:"micro,omitempty"`
}

// answer is what the warden says. A started command's comes with the descriptors stdin, stdout, stderr and control.
type answer struct {
	Error string `json:"error,omitempty"`
}

// spec is what a keeper is told, first on its control socket.
type spec struct {
	Argv   []string `json:"argv"`
	Env    []string `json:"env"`
	UID    int      `json:"uid"`
	GID    int      `json:"gid"`
	Groups []int    `json:"groups"`
}

// status is the last message of a keeper.
type status struct {
	Error  string `json:"error,omitempty"` // it did not start
	Code   int    `json:"code"`            // exit code, or 128 + signal
	Signal int    `json:"signal,omitempty"`
	Left   int    `json:"left,omitempty"` // processes that could not be killed in time
}

// socket is one end of a pair.
type socket struct{ f *os.File }

// socketPair returns two ends; both are closed on exec.
func socketPair() (a, b int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("socket pair: %w", err)
	}
	for _, fd := range fds {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 2*maxMessage)
	}
	return fds[0], fds[1], nil
}

// newSocket takes a descriptor over. It can be closed while somebody waits on it.
func newSocket(fd int, name string) *socket {
	unix.CloseOnExec(fd)
	_ = unix.SetNonblock(fd, true)
	return &socket{f: os.NewFile(uintptr(fd), name)}
}

// Close ends whoever waits on the socket.
func (s *socket) Close() error { return s.f.Close() }

// send sends a message and descriptors, which stay the caller's.
func (s *socket) send(v any, fds ...int) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	if b.Len() > maxMessage {
		return fmt.Errorf("the command is too large to be started: %d bytes, allowed are %d", b.Len(), maxMessage)
	}
	conn, err := s.f.SyscallConn()
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	var sent error
	err = conn.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), b.Bytes(), rights, nil, unix.MSG_NOSIGNAL)
		return sent != unix.EAGAIN && sent != unix.EINTR
	})
	return errors.Join(err, sent)
}

// receive receives a message and the descriptors that came along. io.EOF means that the other end is gone.
func (s *socket) receive(v any, maxFDs int) ([]*os.File, error) {
	b := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4*max(maxFDs, 1)))
	conn, err := s.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var n, oobn, flags int
	var got error
	err = conn.Read(func(fd uintptr) bool {
		n, oobn, flags, _, got = unix.Recvmsg(int(fd), b, oob, unix.MSG_CMSG_CLOEXEC)
		return got != unix.EAGAIN && got != unix.EINTR
	})
	if err := errors.Join(err, got); err != nil {
		return nil, err
	}
	files := received(oob[:oobn])
	err = func() error {
		switch {
		case n == 0 && len(files) == 0:
			return io.EOF
		case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
			return errors.New("a message is too large")
		case len(files) > maxFDs:
			return errors.New("a message brings too many descriptors")
		}
		return json.Unmarshal(b[:n], v)
	}()
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

func received(oob []byte) []*os.File {
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
