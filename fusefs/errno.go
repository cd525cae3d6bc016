package fusefs

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"msb/agentclient"
)

// maxErrno is the highest number that the kernel takes for an error.
const maxErrno = 511

// status is the answer to the kernel for an error of a request that ran under
// ctx.
func (s *base) status(ctx context.Context, err error) fuse.Status {
	return fuse.Status(s.errno(ctx, err))
}

func (s *base) errno(ctx context.Context, err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var failed *agentclient.FSError
	if errors.As(err, &failed) {
		if failed.Errno == 0 && strings.Contains(failed.Message, "too many open") {
			return syscall.ENFILE // the agent's own limit has no number
		}
		return guestErrno(failed.Errno)
	}
	var refused *agentclient.NodeError
	if errors.As(err, &refused) {
		return guestErrno(refused.Errno)
	}
	var unsupported *agentclient.UnsupportedOperationError
	if errors.As(err, &unsupported) {
		return syscall.EOPNOTSUPP
	}
	switch {
	case interrupted(ctx):
		return syscall.EINTR
	case ctx.Err() != nil && s.link.up():
		s.log.Warn("the guest did not answer in time", "error", err)
		return syscall.EIO
	}
	var own syscall.Errno
	if errors.As(err, &own) && own > 0 && own <= maxErrno && own != syscall.ENOSYS && !brokenLink(own) {
		return own
	}
	if !s.link.up() {
		return syscall.ENOTCONN
	}
	return syscall.EIO
}

// guestErrno is the guest's errno as far as a file system may give it: with
// ENOSYS the kernel would never ask again.
func guestErrno(e syscall.Errno) syscall.Errno {
	switch {
	case e <= 0 || e > maxErrno:
		return syscall.EIO
	case e == syscall.ENOSYS:
		return syscall.EOPNOTSUPP
	}
	return e
}

// brokenLink tells whether e is about the connection and not about a file.
func brokenLink(e syscall.Errno) bool {
	switch e {
	case syscall.EPIPE, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.ECONNABORTED:
		return true
	}
	return false
}
