package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// source writes a root file system tar to w, packed or not.
type source func(ctx context.Context, w io.Writer, progress Progress) error

// Builtin returns the names that Build knows, the default first.
func Builtin() []string { return []string{Default, "tiny"} }

// Build builds the built-in image name ("debian" or "tiny"), anew if the library has one already. Sandboxes that are
// layered on the former one keep it.
func (l *Library) Build(ctx context.Context, name string, o Options) (Image, error) {
	return l.build(ctx, name, o, true)
}

// Ensure returns the image with that name and builds it first when it is a built-in one that is not there. Of several
// callers at once, one builds and the others wait for it.
func (l *Library) Ensure(ctx context.Context, name string, o Options) (Image, error) {
	img, err := l.Get(name)
	if errors.Is(err, ErrNotFound) && slices.Contains(Builtin(), name) {
		return l.build(ctx, name, o, false)
	}
	return img, err
}

func (l *Library) build(ctx context.Context, name string, o Options, anew bool) (Image, error) {
	var from source
	switch name {
	case "tiny":
		from = l.tinyRoot
	case "debian":
		from = debianRoot
	default:
		return Image{}, fmt.Errorf("there is no built-in image %q: there are %s; `msb image import` takes any other root file system",
			name, strings.Join(Builtin(), " and "))
	}
	img, err := l.create(ctx, name, "built-in", from, o, anew)
	if err != nil {
		return Image{}, fmt.Errorf("cannot build image %s: %w", name, err)
	}
	return img, nil
}

// Import stores the root file system in a tar (as `docker export` writes it; plain, or compressed with gzip, bzip2,
// xz or zstd) as image name. from says in its record where it came from. After ctx has ended r may still be read from
// once, if a read was going on.
func (l *Library) Import(ctx context.Context, name, from string, r io.Reader, o Options) (Image, error) {
	copyTar := func(ctx context.Context, w io.Writer, progress Progress) error {
		progress.report("reading "+from, -1)
		return decompress(ctx, w, &interruptible{ctx: ctx, r: r})
	}
	if slices.Contains(Builtin(), name) {
		return Image{}, fmt.Errorf("cannot import image %s: that is the name of a built-in one, choose another", name)
	}
	img, err := l.create(ctx, name, cleanText(from), copyTar, o, true)
	if err != nil {
		return Image{}, fmt.Errorf("cannot import image %s: %w", name, err)
	}
	return img, nil
}

// create makes an image of a root file system. Nothing is left behind unless it succeeds.
func (l *Library) create(ctx context.Context, name, origin string, from source, o Options, anew bool) (Image, error) {
	if err := CheckName(name); err != nil {
		return Image{}, err
	}
	if o.Unpack == nil {
		return Image{}, errors.New("nothing to unpack it with")
	}
	release, err := l.lock(ctx, "image-"+name, func() { o.Progress.report("waiting for another msb that makes image "+name, -1) })
	if err != nil {
		return Image{}, err
	}
	defer release()
	if !anew {
		if img, err := l.load(name); err == nil {
			return img, nil // made while we waited
		}
	}
	sweep(l.imagesDir())
	sweep(l.cacheDir())
	img, err := l.createLocked(ctx, name, origin, from, o)
	if errors.Is(err, unix.ENOSPC) && ctx.Err() == nil {
		err = fmt.Errorf("the disk is full, nothing was kept: %w", err)
	}
	return img, err
}

func (l *Library) createLocked(ctx context.Context, name, origin string, from source, o Options) (Image, error) {
	spool, stats, err := l.spool(ctx, from, o.Progress)
	if err != nil {
		return Image{}, err
	}
	defer spool.Close()
	if err := checkSpace(l.imagesDir(), stats.blocks*fsBlock); err != nil {
		return Image{}, err
	}
	tmp, err := newTempFile(l.imagesDir())
	if err != nil {
		return Image{}, err
	}
	defer tmp.discard()
	geometry := geometryFor(stats)
	o.Progress.report("making the file system", -1)
	if err := makeFS(ctx, tmp.path, geometry); err != nil {
		return Image{}, err
	}
	content := &progressReader{
		ctx: ctx, r: io.NewSectionReader(spool, 0, stats.size), size: stats.size, stage: "unpacking", progress: o.Progress,
	}
	o.Progress.report("unpacking", 0)
	if err := o.Unpack(ctx, tmp.path, content, stats.size); err != nil {
		if ctx.Err() != nil {
			return Image{}, context.Cause(ctx)
		}
		return Image{}, fmt.Errorf("cannot unpack the root file system: %w", err)
	}
	if err := checkFS(tmp.f); err != nil {
		return Image{}, err
	}
	return l.keep(ctx, tmp, Image{
		Name: name, Size: geometry.size, Created: time.Now().UTC().Truncate(time.Second), Source: origin, OS: stats.os,
	}, o.Progress)
}

// keep gives an unpacked file its checksum and its place.
func (l *Library) keep(ctx context.Context, tmp *tempPath, img Image, progress Progress) (Image, error) {
	// What is on disk is what counts: a write error of the host shows here, before the checksum is taken.
	if err := tmp.f.Sync(); err != nil {
		return Image{}, fmt.Errorf("cannot write the image: %w", err)
	}
	sum, err := checksum(ctx, io.NewSectionReader(tmp.f, 0, img.Size), img.Size, "checksum", progress)
	if err != nil {
		return Image{}, err
	}
	img.SHA256, img.Path = sum, l.rawPath(sum)
	if err := os.Chmod(tmp.path, 0o444); err != nil {
		return Image{}, err
	}
	release, err := l.lock(ctx, "image-file-"+sum, nil)
	if err != nil {
		return Image{}, err
	}
	defer release()
	if err := tmp.commit(img.Path); err != nil {
		return Image{}, err
	}
	if s, err := stampOf(tmp.f); err == nil {
		_ = l.writeStamp(sum, s) // without it the first check reads the whole file
	}
	if err := l.save(img); err != nil {
		return Image{}, err
	}
	progress.report("done", 1)
	return img, nil
}

// spool collects the plain tar of a source in a file without a name and looks through it.
func (l *Library) spool(ctx context.Context, from source, progress Progress) (*os.File, rootStats, error) {
	f, err := os.CreateTemp(l.imagesDir(), tempPrefix+"*")
	if err != nil {
		return nil, rootStats{}, err
	}
	// From here on the disk space is given back whatever becomes of this process.
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, rootStats{}, err
	}
	stats, err := fillSpool(ctx, f, from, progress)
	if err != nil {
		_ = f.Close()
		return nil, rootStats{}, err
	}
	return f, stats, nil
}

func fillSpool(ctx context.Context, f *os.File, from source, progress Progress) (rootStats, error) {
	sink := &errWriter{w: f}
	if err := from(ctx, sink, progress); err != nil {
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case sink.err != nil: // a tool that could not write says so in other words
			err = fmt.Errorf("cannot write to %s: %w", filepath.Dir(f.Name()), sink.err)
		}
		return rootStats{}, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return rootStats{}, err
	}
	progress.report("looking through the root file system", -1)
	return scanRoot(f, size)
}

// interruptible makes a reader that may block for ever (a pipe, a terminal) end with ctx.
type interruptible struct {
	ctx  context.Context
	r    io.Reader
	buf  []byte
	done chan readResult
}

type readResult struct {
	n   int
	err error
}

func (i *interruptible) Read(p []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, context.Cause(i.ctx)
	}
	if i.buf == nil {
		i.buf, i.done = make([]byte, 256<<10), make(chan readResult, 1)
	}
	buf := i.buf[:min(len(p), len(i.buf))]
	go func() {
		n, err := i.r.Read(buf)
		i.done <- readResult{n, err}
	}()
	select {
	case res := <-i.done:
		return copy(p, buf[:res.n]), res.err
	case <-i.ctx.Done():
		i.buf = nil // the read that goes on keeps it
		return 0, context.Cause(i.ctx)
	}
}
