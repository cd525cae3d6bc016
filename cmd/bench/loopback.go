package main

import (
	"fmt"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// serveLoopback is go-fuse's loopback example without passthrough, which lets
// the kernel read the files by itself and which no remote file system can have.
func serveLoopback(mnt, backing string) error {
	root, err := fs.NewLoopbackRoot(backing)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	second := time.Second
	server, err := fs.Mount(mnt, root, &fs.Options{
		AttrTimeout:     &second,
		EntryTimeout:    &second,
		NullPermissions: true,
		MountOptions: fuse.MountOptions{
			Options:              []string{"default_permissions"},
			DirectMount:          true,
			DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		},
	})
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	server.Wait()
	return nil
}
