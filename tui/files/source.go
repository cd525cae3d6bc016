package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sort"
	"strings"
	"time"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/formatters"
	"github.com/alecthomas/chroma/v2/lexers"

	"msb/agentclient"
	"msb/protocol/agent"
	"msb/tui/foreign"
)

// Source is where files are; a guest's word is not taken for more than it is.
type Source interface {
	List(ctx context.Context, dir string) ([]agent.Entry, error)
	// Read returns the first limit bytes.
	Read(ctx context.Context, file string, limit int) ([]byte, error)
}

const (
	callTimeout = 10 * time.Second
	maxPreview  = 64 << 10 // bytes
	maxEntries  = 5000     // of a folder
)

// InSandbox reads over the agent of a sandbox.
func InSandbox(socket string) Source { return sandbox(socket) }

type sandbox string

func (s sandbox) List(ctx context.Context, dir string) ([]agent.Entry, error) {
	c, err := agentclient.Dial(ctx, string(s))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	d, err := c.FS().OpenDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer d.Close(ctx)
	var all []agent.Entry
	for len(all) < maxEntries {
		list, err := d.Read(ctx, 0)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			break
		}
		all = append(all, list...)
	}
	return all, nil
}

func (s sandbox) Read(ctx context.Context, file string, limit int) ([]byte, error) {
	c, err := agentclient.Dial(ctx, string(s))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f, err := c.FS().OpenFile(ctx, file, agent.OpenOptions{Read: true})
	if err != nil {
		return nil, err
	}
	defer f.Close(ctx)
	var b bytes.Buffer
	n := uint64(limit)
	_, err = f.Download(ctx, &b, 0, &n)
	return b.Bytes(), err
}

// entry is a file of a folder.
type entry struct {
	name string // one component of a path, foreign
	path string
	kind string
	size uint64
	mode uint32
	time int64
}

// list asks for a folder and takes only what can be in one.
func list(ctx context.Context, s Source, dir string) ([]entry, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := s.List(ctx, dir)
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, e := range all[:min(len(all), maxEntries)] {
		name := e.Path[strings.LastIndexByte(e.Path, '/')+1:]
		if name == "" || name == "." || name == ".." || strings.ContainsRune(name, 0) {
			continue
		}
		n := entry{name: name, path: path.Join(dir, name), kind: e.Kind, size: e.Size, mode: e.Mode}
		if e.Modified != nil {
			n.time = *e.Modified
		}
		out = append(out, n)
	}
	sort.Slice(out, func(i, j int) bool {
		if a, b := out[i].kind == agent.KindDir, out[j].kind == agent.KindDir; a != b {
			return a
		}
		return out[i].name < out[j].name
	})
	return out, nil
}

// preview reads the beginning of a file and makes lines of it that are safe to
// draw.
func preview(ctx context.Context, s Source, e entry) ([]string, error) {
	if e.kind != agent.KindFile {
		return []string{"no preview: " + foreign.Text(e.kind)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	b, err := s.Read(ctx, e.path, maxPreview)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return dump(b[:min(len(b), 4096)]), nil
	}
	text := foreign.Lines(string(b))
	lines := strings.Split(strings.TrimSuffix(highlight(e.name, text), "\n"), "\n")
	if uint64(len(b)) < e.size {
		lines = append(lines, fmt.Sprintf("… %d bytes more", e.size-uint64(len(b))))
	}
	return lines, nil
}

// dump shows bytes.
func dump(b []byte) []string {
	var out []string
	for i := 0; i < len(b); i += 16 {
		row := b[i:min(i+16, len(b))]
		text := strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '.'
			}
			return r
		}, strings.ToValidUTF8(string(row), "."))
		out = append(out, fmt.Sprintf("%06x  % -48x %s", i, row, text))
	}
	return out
}

// highlight colours text that is safe; the result is, too.
func highlight(name, text string) (out string) {
	defer func() {
		if recover() != nil {
			out = text
		}
	}()
	lexer := lexers.Match(name)
	if lexer == nil || len(text) > maxPreview*2 {
		return text
	}
	it, err := chroma.Coalesce(lexer).Tokenise(nil, text)
	if err != nil {
		return text
	}
	var b strings.Builder
	if err := formatters.TTY16.Format(&b, colours, it); err != nil {
		return text
	}
	return foreign.Styled(b.String())
}

var colours = chroma.MustNewStyle("msb", chroma.StyleEntries{
	chroma.Keyword: "#ansiteal", chroma.KeywordType: "#ansiteal", chroma.LiteralString: "#ansidarkgreen",
	chroma.LiteralNumber: "#ansipurple", chroma.Comment: "#ansidarkgray", chroma.NameFunction: "bold",
})
