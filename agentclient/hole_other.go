//go:build !linux

package agentclient

import "os"

// punch would give room in the middle of a file back; here it stays taken until
// the end is reached.
func punch(*os.File, int64, int64) {}
