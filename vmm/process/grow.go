package process

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// growExt4 makes an unused ext4 file system as large as the file that it is in, which takes some hundredths of a second
// whatever the size. The guest does the same when it mounts its disk, but may not in a container. Any other content
// stays as it is, and so does all where resize2fs is missing.
func growExt4(ctx context.Context, f *os.File) error {
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 1024+0x38); err != nil || binary.LittleEndian.Uint16(magic[:]) != 0xef53 {
		return nil
	}
	program, err := findResize()
	if err != nil {
		return nil
	}
	cmd := exec.CommandContext(ctx, program, "-f", f.Name()) // -f: it was never used, so there is nothing to check
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("grow the file system: %w: %s", err, strings.TrimSpace(string(bytes.ToValidUTF8(out, nil))))
	}
	return nil
}

// findResize looks also where an ordinary PATH does not.
func findResize() (path string, err error) {
	for _, name := range []string{"resize2fs", "/usr/sbin/resize2fs", "/sbin/resize2fs"} {
		if path, err = exec.LookPath(name); err == nil {
			break
		}
	}
	return path, err
}
