package tree

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// ReadOptions is what of a file is wanted.
type ReadOptions struct {
	MaxBytes int
	// Lines count from 1; End is included. 0 means from the beginning, and to the end.
	Start, End int
}

// Text is a piece of a file.
type Text struct {
	Content   string
	Binary    bool // not text: no content
	Truncated bool // more of what was asked for did not fit
	Start     int  // first line of Content
	Lines     int  // lines of Content, a last one without its end included
	Size      int64
}

// Bounds of a read that has to look for its first line.
const (
	maxReadTime = 10 * time.Second
	maxScan     = 1 << 30
)

// ReadText reads text of a regular file. What does not fit is cut between characters; a line that is wanted is
// searched for in bounded time.
func (t *Tree) ReadText(ctx context.Context, name string, o ReadOptions) (Text, error) {
	ctx, cancel := context.WithTimeout(ctx, maxReadTime)
	defer cancel()
	return Do(ctx, t, func(ctx context.Context, r *Root) (Text, error) {
		name := t.Local(name)
		fd, st, err := r.openFile(name, 0)
		if err != nil {
			return Text{}, err
		}
		defer unix.Close(fd)
		text, err := readLines(fdReader{ctx, fd}, o)
		text.Size = st.Size
		if err != nil {
			return Text{}, &PathError{Path: name, Err: err}
		}
		return text, nil
	})
}

func readLines(in io.Reader, o ReadOptions) (Text, error) {
	b := bufio.NewReaderSize(io.LimitReader(in, maxScan), 64<<10)
	text := Text{Start: max(o.Start, 1)}
	for line := 1; line < text.Start; {
		piece, err := b.ReadSlice('\n')
		if err == nil {
			line++
			continue
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err == io.EOF {
			if len(piece) > 0 {
				line++
			}
			return Text{}, fmt.Errorf("it has no line %d, only %d", text.Start, line-1)
		}
		return Text{}, err
	}
	var content []byte
	for line := text.Start; o.End == 0 || line <= o.End; {
		piece, err := b.ReadSlice('\n')
		if room := o.MaxBytes - len(content); len(piece) > room {
			content = append(content, piece[:max(room, 0)]...)
			text.Truncated = true
			break
		}
		content = append(content, piece...)
		if err == nil {
			line++
			continue
		}
		if err == io.EOF {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return Text{}, err
		}
	}
	if text.Truncated {
		content = wholeRunes(content)
	}
	if bytes.IndexByte(content, 0) >= 0 || !utf8.Valid(content) {
		text.Binary, text.Truncated = true, false
		return text, nil
	}
	text.Content = string(content)
	text.Lines = bytes.Count(content, []byte{'\n'})
	if n := len(content); n > 0 && content[n-1] != '\n' {
		text.Lines++
	}
	return text, nil
}

// wholeRunes drops the beginning of a character at the end of b.
func wholeRunes(b []byte) []byte {
	for i := 1; i <= utf8.UTFMax && i <= len(b); i++ {
		c := b[len(b)-i]
		if !utf8.RuneStart(c) {
			continue
		}
		if !utf8.FullRune(b[len(b)-i:]) {
			return b[:len(b)-i]
		}
		break
	}
	return b
}

// ReadFile reads a whole regular file of at most limit bytes and its permissions. Links are not followed.
func (r *Root) ReadFile(ctx context.Context, name string, limit int64) ([]byte, uint32, error) {
	fd, st, err := r.openFile(name, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(fd)
	b, err := io.ReadAll(io.LimitReader(fdReader{ctx, fd}, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	if err != nil {
		return nil, 0, &PathError{Path: name, Err: err}
	}
	return b, st.Mode & 0o777, nil
}
