package image

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
)

// compression is a way a kernel, a module or a tar is packed.
type compression struct {
	name  string
	magic []byte
	tool  []string // program and arguments that unpack stdin to stdout; empty = in this process
	pkg   string   // Debian's package of that program
}

var compressions = []compression{
	{name: "gzip", magic: []byte{0x1f, 0x8b}},
	{name: "bzip2", magic: []byte("BZh")},
	{name: "xz", magic: []byte{0xfd, '7', 'z', 'X', 'Z', 0}, tool: []string{"xz", "-dc"}, pkg: "xz-utils"},
	{name: "lzma", magic: []byte{0x5d, 0, 0}, tool: []string{"xz", "-dc", "--format=lzma"}, pkg: "xz-utils"},
	{name: "zstd", magic: []byte{0x28, 0xb5, 0x2f, 0xfd}, tool: []string{"zstd", "-dc", "-q"}, pkg: "zstd"},
	{name: "lz4", magic: []byte{0x02, 0x21, 0x4c, 0x18}},
}

// magicLen is the length of the longest magic.
const magicLen = 6

// compressionOf tells by the first bytes how data is packed; nil = not, or in a way we do not know.
func compressionOf(head []byte) *compression {
	for i := range compressions {
		if bytes.HasPrefix(head, compressions[i].magic) {
			return &compressions[i]
		}
	}
	return nil
}

// decompress writes r, unpacked if it is packed, to w.
func decompress(ctx context.Context, w io.Writer, r io.Reader) error {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(magicLen)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	c := compressionOf(head)
	if c == nil {
		_, err := io.Copy(w, &contextReader{ctx, br})
		return err
	}
	return c.unpack(ctx, w, br)
}

func (c *compression) unpack(ctx context.Context, w io.Writer, r io.Reader) error {
	if len(c.tool) > 0 {
		// The tool's failure and ours are told apart: a full disk is not a damaged file.
		sink := &errWriter{w: w}
		err := tool{name: c.tool[0], args: c.tool[1:], stdin: &contextReader{ctx, r}, stdout: sink}.run(ctx)
		switch {
		case sink.err != nil && ctx.Err() == nil:
			return sink.err
		case errors.Is(err, exec.ErrNotFound):
			return fmt.Errorf("data is packed with %s, but there is no program %q: install package %s", c.name, c.tool[0], c.pkg)
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("damaged or truncated %s data: %w", c.name, err)
		}
		return err
	}
	var src io.Reader
	switch c.name {
	case "gzip":
		z, err := gzip.NewReader(&contextReader{ctx, r})
		if err != nil {
			return fmt.Errorf("damaged or truncated gzip data: %w", err)
		}
		src = z
	case "bzip2":
		src = bzip2.NewReader(&contextReader{ctx, r})
	case "lz4":
		src = newLZ4Reader(&contextReader{ctx, r})
	}
	sink := &errWriter{w: w}
	_, err := io.Copy(sink, src)
	if err != nil && sink.err == nil && ctx.Err() == nil {
		return fmt.Errorf("damaged or truncated %s data: %w", c.name, err)
	}
	return err
}

// contextReader ends a copy when ctx ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// errWriter remembers the error of its writer.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	n, err := e.w.Write(p)
	if err != nil {
		e.err = err
	}
	return n, err
}
