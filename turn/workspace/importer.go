package workspace

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os/exec"
	"strings"

	wire "msb/protocol/worktree"
)

// importer writes objects into the private repository.
type importer struct {
	ctx    context.Context
	cmd    *exec.Cmd
	in     io.WriteCloser
	w      *bufio.Writer
	said   bytes.Buffer
	format string
	zeros  []byte
	buf    []byte
	done   bool
}

func newImporter(ctx context.Context, r repo, format string) (*importer, error) {
	i := &importer{ctx: ctx, format: format, buf: make([]byte, 256<<10)}
	i.cmd = r.command(ctx, "fast-import", "--quiet", "--force", "--done")
	i.cmd.Stderr = &i.said
	var err error
	if i.in, err = i.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := i.cmd.Start(); err != nil {
		return nil, failure(ctx, i.cmd, err, "")
	}
	i.w = bufio.NewWriterSize(i.in, 256<<10)
	return i, nil
}

// blob stores size bytes of r and returns their name. A reader that ends early
// is filled up with zeros, and reported.
func (i *importer) blob(size int64, r io.Reader) (id string, short bool, err error) {
	h := i.hash()
	fmt.Fprintf(h, "blob %d\x00", size)
	fmt.Fprintf(i.w, "blob\ndata %d\n", size)
	left := size
	for left > 0 {
		n, rerr := r.Read(i.buf[:min(int64(len(i.buf)), left)])
		h.Write(i.buf[:n])
		if _, err := i.w.Write(i.buf[:n]); err != nil {
			return "", false, i.broken(err)
		}
		left -= int64(n)
		if rerr == nil || left == 0 {
			continue
		}
		if rerr != io.EOF {
			return "", false, rerr
		}
		short = true
		if err := i.fill(h, left); err != nil {
			return "", false, err
		}
		left = 0
	}
	if err := i.w.WriteByte('\n'); err != nil {
		return "", false, i.broken(err)
	}
	return hex.EncodeToString(h.Sum(nil)), short, nil
}

func (i *importer) fill(h hash.Hash, n int64) error {
	if i.zeros == nil {
		i.zeros = make([]byte, 64<<10)
	}
	for n > 0 {
		z := i.zeros[:min(int64(len(i.zeros)), n)]
		h.Write(z)
		if _, err := i.w.Write(z); err != nil {
			return i.broken(err)
		}
		n -= int64(len(z))
	}
	return nil
}

func (i *importer) hash() hash.Hash {
	if i.format == "sha256" {
		return sha256.New()
	}
	return sha1.New()
}

// tree makes ref a commit of a manifest.
func (i *importer) tree(ref string, m Manifest) error {
	fmt.Fprintf(i.w, "commit %s\ncommitter msb <msb@localhost> 0 +0000\ndata 0\n\ndeleteall\n", ref)
	for _, p := range m.sorted() {
		f := m[p]
		if f.Kind == wire.KindDir {
			continue
		}
		if _, err := fmt.Fprintf(i.w, "M %s %s %s\n", f.gitMode(), f.ID, quote(p)); err != nil {
			return i.broken(err)
		}
	}
	_, err := fmt.Fprintf(i.w, "\n")
	if err != nil {
		return i.broken(err)
	}
	return nil
}

// finish waits until everything is stored.
func (i *importer) finish() error {
	if i.done {
		return nil
	}
	_, err := i.w.WriteString("done\n")
	if err == nil {
		err = i.w.Flush()
	}
	if err != nil {
		return i.broken(err)
	}
	i.done = true
	i.in.Close()
	if err := i.cmd.Wait(); err != nil {
		return failure(i.ctx, i.cmd, err, i.said.String())
	}
	return nil
}

// abandon ends it without a result. After finish it does nothing.
func (i *importer) abandon() {
	if !i.done {
		i.done = true
		i.in.Close()
		i.cmd.Process.Kill()
		i.cmd.Wait()
	}
}

// broken says why git does not read any more.
func (i *importer) broken(err error) error {
	if i.done {
		return err
	}
	i.done = true
	i.in.Close()
	if werr := i.cmd.Wait(); werr != nil {
		err = errors.Join(err, failure(i.ctx, i.cmd, werr, firstLine(i.said.String())))
	}
	return fmt.Errorf("keep a copy on the host: %w", err)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// quote is a path as git's streams take it.
func quote(p string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(p) {
		switch c := p[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// text stores a short content.
func (i *importer) text(s string) (id string, err error) {
	id, _, err = i.blob(int64(len(s)), strings.NewReader(s))
	return id, err
}
