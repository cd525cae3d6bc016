package fusefs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// fsType is the type of our mounts, "fuse." in front.
const fsType = "msb"

// Server is a mount that is being served.
type Server struct {
	dir  string
	fs   backend
	done chan struct{}
}

// Mount mounts the guest directory o.Root on dir and serves it until it is
// unmounted. dial is used now, and again whenever the connection is lost; ctx
// bounds the mounting only. On return the mount is ready for use, by other
// processes: the one that serves it must keep away from it.
//
// It refuses a mount point that is missing, not a directory, not empty (but see
// Options.NonEmpty) or in use; one that a dead msb mount still covers is
// cleaned first.
func Mount(ctx context.Context, dir string, dial DialFunc, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkHost(o); err != nil {
		return nil, err
	}
	dir, err = prepare(dir, o)
	if err != nil {
		return nil, err
	}
	fs, err := newBackend(ctx, dir, dial, o)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	s := fs.common()
	if err := fs.checkRoot(ctx); err != nil {
		s.close()
		return nil, err
	}
	options := s.mountOptions()
	fs.adapt(options)
	server, device, err := connectKernel(fs, dir, options)
	if err != nil {
		s.close()
		Unmount(dir) // the kernel may have mounted it already
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	m := &Server{dir: dir, fs: fs, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		server.Serve()
		s.close()
	}()
	if err := server.WaitMount(); err != nil {
		device.Close()
		Unmount(dir)
		<-m.done
		if err == syscall.EACCES {
			err = fmt.Errorf("the guest's %s is closed to you: mount another directory, like NAME:/home/dev", o.Root)
		}
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	raiseReadAhead(dir, chunkSize)
	fs.mounted(device)
	return m, nil
}

func (s *base) mountOptions() *fuse.MountOptions {
	o := &fuse.MountOptions{
		AllowOther: s.opts.AllowOther,
		// The kernel checks permissions with the attributes that it sees:
		// the agent works as root in the guest and would not.
		Options:           []string{"default_permissions"},
		FsName:            s.opts.FsName,
		Name:              fsType,
		MaxWrite:          chunkSize,
		MaxReadAhead:      chunkSize,
		MaxBackground:     64,
		DirectMountStrict: os.Geteuid() == 0,
		DirectMountFlags:  mountInert,
		ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_DIRECT_IO_ALLOW_MMAP,
		Logger:            slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		PanicHandler: func(reason any) fuse.Status {
			s.log.Error("panic in a file system request", "reason", reason, "stack", string(debug.Stack()))
			return fuse.EIO
		},
	}
	if !o.DirectMountStrict {
		o.Options = append(o.Options, "nosuid", "nodev")
	}
	if s.opts.ReadOnly {
		if o.DirectMountStrict {
			o.DirectMountFlags |= mountReadOnly
		} else {
			o.Options = append(o.Options, "ro")
		}
	}
	return o
}

// Dir returns the mount point as it was resolved.
func (m *Server) Dir() string { return m.dir }

// Wait returns when the mount is gone and everything it used is released. After
// a lazy unmount that is when the last file is closed.
func (m *Server) Wait() { <-m.done }

// Done is closed when Wait would return.
func (m *Server) Done() <-chan struct{} { return m.done }

// Connected tells whether there is a connection to the sandbox.
func (m *Server) Connected() bool { return m.fs.common().link.up() }

// Unmount takes the mount away, lazily when it is in use, and sees to it that
// written data reaches the guest, within 30 s. Files that are still open go on
// working until they are closed; Wait tells when.
func (m *Server) Unmount() error {
	select {
	case <-m.done:
		return nil
	default:
	}
	if err := Unmount(m.dir); err != nil {
		select {
		case <-m.done: // somebody else was faster
			return nil
		case <-time.After(time.Second):
			return err
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), m.fs.common().opts.DataTimeout)
	defer stop()
	if err := m.fs.drainAll(ctx); err != nil {
		return fmt.Errorf("unmount %s: some written data did not reach the guest: %w", m.dir, err)
	}
	return nil
}
