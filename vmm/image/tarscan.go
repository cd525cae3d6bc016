package image

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// Bounds on a root file system: far above any real one, and low enough that no sum overflows.
const (
	maxContent = 1 << 40 // bytes
	maxEntries = 50 << 20
)

// rootStats is what a root file system tar holds.
type rootStats struct {
	size    int64 // bytes of the tar up to and with its end marker
	entries int64
	blocks  int64 // file system blocks for contents and directories
	os      string
}

// scanRoot reads a plain tar from its start and refuses what is not a complete root file system. It trusts nothing in
// it and unpacks nothing.
func scanRoot(f *os.File, size int64) (rootStats, error) {
	if size == 0 {
		return rootStats{}, errors.New("the tar is empty: it has no bytes at all")
	}
	r := io.NewSectionReader(f, 0, size)
	s := &rootScan{top: map[string]bool{}}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return rootStats{}, s.broken(err)
		}
		if err := s.entry(h, t); err != nil {
			return rootStats{}, err
		}
	}
	end, err := r.Seek(0, io.SeekCurrent)
	if err != nil {
		return rootStats{}, err
	}
	var marker [1024]byte
	if end < int64(len(marker)) {
		return rootStats{}, s.broken(io.ErrUnexpectedEOF)
	}
	if _, err := f.ReadAt(marker[:], end-int64(len(marker))); err != nil {
		return rootStats{}, err
	}
	if marker != [1024]byte{} {
		return rootStats{}, s.broken(io.ErrUnexpectedEOF)
	}
	s.size = end
	return s.rootStats, s.check()
}

type rootScan struct {
	rootStats
	files     int64
	nameBytes int64
	top       map[string]bool // first elements of the names, the first few
	docker    bool            // the layout of `docker save`
}

func (s *rootScan) entry(h *tar.Header, body io.Reader) error {
	const block = fsBlock
	s.entries++
	if h.Size < 0 || h.Size > maxContent || s.entries > maxEntries {
		return fmt.Errorf("the tar holds more than a root file system can (entry %d of %d bytes)", s.entries, h.Size)
	}
	name := path.Clean("/" + h.Name)[1:]
	first, _, below := strings.Cut(name, "/")
	if first != "" && len(s.top) < 64 {
		s.top[first] = true
	}
	s.nameBytes += int64(len(path.Base(name))+8+3) &^ 3
	switch h.Typeflag {
	case tar.TypeReg:
		s.files++
		s.blocks += (h.Size+block-1)/block + h.Size/(1<<25)
		if !below && (name == "manifest.json" || name == "oci-layout") {
			s.docker = true
		}
	case tar.TypeDir:
		s.blocks++
	case tar.TypeSymlink:
		if len(h.Linkname) >= 60 {
			s.blocks++
		}
	}
	if len(h.PAXRecords) > 0 {
		s.blocks++ // attributes that may not fit the inode
	}
	if s.blocks > maxContent/block {
		return fmt.Errorf("the tar holds more than %d GiB", int64(maxContent)>>30)
	}
	if s.os == "" && h.Typeflag == tar.TypeReg && (name == "etc/os-release" || name == "usr/lib/os-release") {
		s.os = prettyName(io.LimitReader(body, 64<<10))
	}
	return nil
}

// broken says in the words of this package what is wrong with a tar.
func (s *rootScan) broken(err error) error {
	switch {
	case s.entries == 0 && (errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF)):
		return errors.New("this is not a tar file")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the tar is truncated: it ends after %d entries without its end marker", s.entries)
	case errors.Is(err, tar.ErrHeader):
		return fmt.Errorf("the tar is damaged after %d entries", s.entries)
	default:
		return fmt.Errorf("cannot read the tar: %w", err)
	}
}

func (s *rootScan) check() error {
	s.blocks += s.nameBytes * 2 / fsBlock // directories fill their blocks by half at worst
	switch {
	case s.docker && !s.isRoot():
		return errors.New("the tar is a saved image, not a root file system: run `docker create IMAGE` and `docker export` that container")
	case s.files == 0:
		return errors.New("the tar is empty: it holds no root file system")
	case !s.isRoot() && len(s.top) == 1:
		var only string
		for only = range s.top {
		}
		return fmt.Errorf("the tar holds no root file system: everything in it is below %s; make it with `tar -C DIR -c .`",
			cleanText(fmt.Sprintf("%.100q", only)))
	case !s.isRoot():
		return errors.New("the tar holds no root file system: it has no /bin, /usr, /sbin or /etc")
	}
	return nil
}

func (s *rootScan) isRoot() bool {
	return s.top["bin"] || s.top["usr"] || s.top["sbin"] || s.top["etc"]
}

// prettyName reads the name of a distribution from its os-release file.
func prettyName(r io.Reader) string {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "PRETTY_NAME="); ok {
			name := cleanText(strings.Trim(value, `"'`))
			return strings.ToValidUTF8(name[:min(len(name), 100)], "")
		}
	}
	return ""
}
