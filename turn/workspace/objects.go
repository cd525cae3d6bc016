package workspace

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// objects reads contents from the private repository, one at a time.
type objects struct {
	ctx  context.Context
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said bytes.Buffer
}

func (r repo) objects(ctx context.Context) (*objects, error) {
	o := &objects{ctx: ctx, cmd: r.command(ctx, "cat-file", "--batch")}
	o.cmd.Stderr = &o.said
	var err error
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	o.out = bufio.NewReaderSize(out, 256<<10)
	if err := o.cmd.Start(); err != nil {
		return nil, failure(ctx, o.cmd, err, "")
	}
	return o, nil
}

func (o *objects) close() {
	o.in.Close()
	o.cmd.Process.Kill()
	o.cmd.Wait()
}

// copy writes a content to w.
func (o *objects) copy(id string, w io.Writer) error {
	size, err := o.ask(id)
	if err == nil {
		_, err = io.CopyN(w, o.out, size)
	}
	if err == nil {
		_, err = o.out.Discard(1) // the line feed after it
	}
	if err != nil {
		return o.failed(id, err)
	}
	return nil
}

// text returns a content of at most limit bytes.
func (o *objects) text(id string, limit int) (string, error) {
	var b strings.Builder
	if err := o.copy(id, &b); err != nil {
		return "", err
	}
	if b.Len() > limit {
		return "", fmt.Errorf("object %s has %d bytes", id, b.Len())
	}
	return b.String(), nil
}

func (o *objects) ask(id string) (size int64, err error) {
	if _, err := io.WriteString(o.in, id+"\n"); err != nil {
		return 0, err
	}
	line, err := o.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	// "ID TYPE SIZE"
	part := strings.Fields(line)
	if len(part) != 3 || part[1] != "blob" {
		return 0, fmt.Errorf("git cat-file: %s", strings.TrimSpace(line))
	}
	return strconv.ParseInt(part[2], 10, 64)
}

func (o *objects) failed(id string, err error) error {
	if o.ctx.Err() != nil {
		return context.Cause(o.ctx)
	}
	return fmt.Errorf("copy on the host of %s: %w", id, err)
}
