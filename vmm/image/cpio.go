package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
)

// cpioWriter writes an archive in the "newc" format, the one the kernel unpacks an initramfs from
// (Documentation/driver-api/early-userspace/buffer-format.rst): a header of 6+13·8 hexadecimal digits, the name with
// its NUL, the contents; name and contents each padded to 4 bytes.
type cpioWriter struct {
	w      io.Writer
	offset int64
	inode  uint32
	err    error
}

// Device numbers and file types as in the mode field of the format.
const (
	cpioDir     = 0o040000
	cpioRegular = 0o100000
	cpioCharDev = 0o020000
	cpioTrailer = "TRAILER!!!"
)

func newCPIOWriter(w io.Writer) *cpioWriter { return &cpioWriter{w: w} }

// dir adds a directory. Names have no leading slash; parents must be added first.
func (c *cpioWriter) dir(name string, perm fs.FileMode) {
	c.header(name, cpioDir|uint32(perm.Perm()), 0, 0, 0)
}

// file adds a regular file.
func (c *cpioWriter) file(name string, perm fs.FileMode, data []byte) {
	if int64(len(data)) > math.MaxUint32 {
		c.fail(fmt.Errorf("cpio: %s is larger than 4 GiB", name))
		return
	}
	c.header(name, cpioRegular|uint32(perm.Perm()), uint32(len(data)), 0, 0)
	c.write(data)
	c.pad()
}

// charDev adds a character device node.
func (c *cpioWriter) charDev(name string, perm fs.FileMode, major, minor uint32) {
	c.header(name, cpioCharDev|uint32(perm.Perm()), 0, major, minor)
}

// close ends the archive and returns the first error of all calls.
func (c *cpioWriter) close() error {
	c.inode = 0
	c.raw(cpioTrailer, 0, 0, 0, 0, 0)
	if n := c.offset % 512; n != 0 {
		c.write(make([]byte, 512-n))
	}
	return c.err
}

func (c *cpioWriter) header(name string, mode, size, major, minor uint32) {
	if name == "" || name[0] == '/' || name == cpioTrailer {
		c.fail(fmt.Errorf("cpio: bad name %q", name))
		return
	}
	c.inode++
	c.raw(name, c.inode, mode, size, major, minor)
}

func (c *cpioWriter) raw(name string, inode, mode, size, major, minor uint32) {
	links := 1
	if mode&cpioDir != 0 && mode&cpioRegular != cpioRegular {
		links = 2
	}
	// Owner 0:0 and time 0 throughout: the same inputs give the same archive.
	c.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, len(name)+1, 0, name))
	c.pad()
}

func (c *cpioWriter) pad() {
	if n := c.offset % 4; n != 0 {
		c.write(make([]byte, 4-n))
	}
}

func (c *cpioWriter) write(p []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(p)
	c.offset += int64(n)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		c.fail(err)
	}
}

func (c *cpioWriter) fail(err error) { c.err = errors.Join(c.err, err) }
