package image

import (
	"context"
	"errors"
)

// Initramfs returns the path of an initramfs for kernel k with the guest agent (a static binary) as /init. It holds
//
//	/init             the guest agent
//	/modules/order    names of the modules to load before the root file system is mounted, one a line, in that order
//	/modules/late     names of the modules to load after the guest is ready (may be empty), in that order
//	/modules/*.ko     the modules
//	/dev/console      and /dev/null
//
// It is built once for each set of inputs and cached.
func (l *Library) Initramfs(ctx context.Context, k Kernel, guest string) (string, error) {
	return "", errors.New("not there yet")
}
