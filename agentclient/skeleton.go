// Package agentclient is the host's client of the agent protocol: handshake,
// generation gate, commands, files and TCP streams of one sandbox, over the
// socket that its runtime serves.
package agentclient

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"msb/protocol/agent"
)

var errSkeleton = errors.New("not built yet")

// Client is one connection to the agent of a sandbox. Safe for concurrent use.
type Client struct{}

// Dial connects to the agent socket at socketPath. Connecting and the
// handshake together are bounded by 10 s.
func Dial(ctx context.Context, socketPath string) (*Client, error) { return nil, errSkeleton }

// New runs the handshake on rwc and takes it over; it is closed when New fails.
func New(ctx context.Context, rwc io.ReadWriteCloser) (*Client, error) { return nil, errSkeleton }

// WireFormat tells which prologue the peer spoke.
type WireFormat int

const (
	// WireCurrent is the prologue with an id range.
	WireCurrent WireFormat = iota
	// WireLegacyV1 is the prologue of releases before 0.5.
	WireLegacyV1
)

// Ready is what the handshake brought.
type Ready struct {
	NegotiatedVersion uint8
	WireFormat        WireFormat
	Info              agent.ReadyPayload
	IDStart, IDEnd    uint32
}

// Supports tells whether messages of type t may be sent to this peer.
func (r *Ready) Supports(t agent.Type) bool { return false }

// EnsureVersionCompat returns an *UnsupportedOperationError when t may not be
// sent to this peer.
func (r *Ready) EnsureVersionCompat(t agent.Type) error { return errSkeleton }

// ReadyBytes returns the ready frame as it was on the wire.
func (r *Ready) ReadyBytes() []byte { return nil }

func (c *Client) Ready() *Ready                                       { return nil }
func (c *Client) Ping(ctx context.Context) (time.Duration, error)     { return 0, errSkeleton }
func (c *Client) Touch(ctx context.Context) (uint64, error)           { return 0, errSkeleton }
func (c *Client) Shutdown(ctx context.Context) error                  { return errSkeleton }
func (c *Client) Close() error                                        { return errSkeleton }
func (c *Client) Done() <-chan struct{}                               { return nil }
func (c *Client) Err() error                                          { return errSkeleton }
func (c *Client) FS() *FS                                             { return &FS{} }
func (c *Client) Exec(ctx context.Context, s ExecSpec) (*Exec, error) { return nil, errSkeleton }
func (c *Client) DialTCP(ctx context.Context, host string, port uint16) (*TCPConn, error) {
	return nil, errSkeleton
}

// ExecSpec is a command to run. Env entries are K=V. An empty Cwd or User
// means the sandbox's default.
type ExecSpec struct {
	Cmd        string
	Args, Env  []string
	Cwd, User  string
	TTY        bool
	Rows, Cols uint16
	Rlimits    []agent.Rlimit
}

// ExecError is the guest's answer when a command could not be started.
// Kind is one of the protocol's words: not_found, permission_denied, ...
type ExecError struct {
	Kind    string
	Errno   *int32
	Message string
	Stage   string
}

func (e *ExecError) Error() string { return e.Message }

// Exec is a started command.
type Exec struct{}

func (e *Exec) PID() uint32                               { return 0 }
func (e *Exec) Stdin() io.WriteCloser                     { return nil }
func (e *Exec) Stdout() io.Reader                         { return nil }
func (e *Exec) Stderr() io.Reader                         { return nil }
func (e *Exec) Wait() (int, error)                        { return -1, errSkeleton }
func (e *Exec) Close() error                              { return nil } // kills the command if it still runs
func (e *Exec) Signal(ctx context.Context, sig int) error { return errSkeleton }
func (e *Exec) Resize(ctx context.Context, rows, cols uint16) error {
	return errSkeleton
}

// FS are the file operations.
type FS struct{}

func (f *FS) Stat(ctx context.Context, path string, follow bool) (agent.Entry, error) {
	return agent.Entry{}, errSkeleton
}
func (f *FS) SetStat(ctx context.Context, path string, follow bool, a agent.Attrs) error {
	return errSkeleton
}
func (f *FS) List(ctx context.Context, path string) ([]agent.Entry, error) { return nil, errSkeleton }
func (f *FS) ReadLink(ctx context.Context, path string) (string, error)    { return "", errSkeleton }
func (f *FS) RealPath(ctx context.Context, path string) (string, error)    { return "", errSkeleton }
func (f *FS) Symlink(ctx context.Context, target, link string) error       { return errSkeleton }
func (f *FS) Mkdir(ctx context.Context, path string, mode *uint32) error   { return errSkeleton }
func (f *FS) Remove(ctx context.Context, path string) error                { return errSkeleton }
func (f *FS) RemoveDir(ctx context.Context, path string, recursive bool) error {
	return errSkeleton
}
func (f *FS) Copy(ctx context.Context, src, dst string) error   { return errSkeleton }
func (f *FS) Rename(ctx context.Context, src, dst string) error { return errSkeleton }
func (f *FS) OpenFile(ctx context.Context, path string, o agent.OpenOptions) (*File, error) {
	return nil, errSkeleton
}
func (f *FS) OpenDir(ctx context.Context, path string) (*Dir, error) { return nil, errSkeleton }

// File is an open file of the guest.
type File struct{}

func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error)  { return 0, errSkeleton }
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) (int, error) { return 0, errSkeleton }

// Download writes length bytes from off (nil: to the end) to w.
func (f *File) Download(ctx context.Context, w io.Writer, off int64, length *uint64) (int64, error) {
	return 0, errSkeleton
}

// Upload writes all of r at off.
func (f *File) Upload(ctx context.Context, r io.Reader, off int64) (int64, error) {
	return 0, errSkeleton
}
func (f *File) Stat(ctx context.Context) (agent.Entry, error)    { return agent.Entry{}, errSkeleton }
func (f *File) SetStat(ctx context.Context, a agent.Attrs) error { return errSkeleton }
func (f *File) Close(ctx context.Context) error                  { return errSkeleton }
func (f *File) Client() *Client                                  { return nil }

// Dir is an open directory of the guest.
type Dir struct{}

// Read returns up to limit entries (0: the guest's default); none is the end.
func (d *Dir) Read(ctx context.Context, limit uint32) ([]agent.Entry, error) { return nil, errSkeleton }
func (d *Dir) Close(ctx context.Context) error                               { return errSkeleton }

// TCPConn is a TCP stream that starts in the guest.
type TCPConn struct{ net.Conn }

// CloseWrite sends the end of the stream; reading goes on.
func (c *TCPConn) CloseWrite() error { return errSkeleton }

// Pool keeps a few connections to one sandbox, reconnects when they are lost
// and renews them before their ids run out.
type Pool struct{}

// PoolOptions: Dial opens one connection; Size is how many to use (default 1).
type PoolOptions struct {
	Dial func(ctx context.Context) (*Client, error)
	Size int
}

func NewPool(o PoolOptions) *Pool                        { return &Pool{} }
func (p *Pool) Get(ctx context.Context) (*Client, error) { return nil, errSkeleton }
func (p *Pool) Close() error                             { return nil }
