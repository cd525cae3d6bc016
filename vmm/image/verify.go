package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrCorrupt is returned (wrapped) by Verify for an image whose file is missing or not what was stored.
var ErrCorrupt = errors.New("image is corrupt")

// stamp is how a file looked when its checksum was last found to be right.
type stamp struct {
	Size    int64  `json:"size"`
	MtimeNs int64  `json:"mtime_ns"`
	Inode   uint64 `json:"inode"`
}

func (l *Library) stampPath(sha string) string { return filepath.Join(l.imagesDir(), sha+".verified") }

func stampOf(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, err
	}
	return stamp{Size: st.Size, MtimeNs: st.Mtim.Nano(), Inode: st.Ino}, nil
}

// Verify checks that the image's file is what was stored. The whole file is read only when its size, time or inode
// differ from those at the last check; that takes about a second for a GiB. The error wraps ErrCorrupt and says what
// to do.
func (l *Library) Verify(ctx context.Context, img Image, progress Progress) error {
	corrupt := func(what string) error {
		return fmt.Errorf("%w: %s of image %s %s; %s", ErrCorrupt, img.Path, img.label(), what, remake(img.Name))
	}
	f, err := os.Open(img.Path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s of image %s is missing; %s", ErrCorrupt, img.Path, img.label(), remake(img.Name))
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", img.label(), err)
	}
	defer f.Close()
	now, err := stampOf(f)
	if err != nil {
		return fmt.Errorf("image %s: %w", img.label(), err)
	}
	if img.Size != 0 && now.Size != img.Size {
		return corrupt(fmt.Sprintf("has %d bytes instead of %d", now.Size, img.Size))
	}
	if data, err := os.ReadFile(l.stampPath(img.SHA256)); err == nil {
		var last stamp
		if json.Unmarshal(data, &last) == nil && last == now {
			return nil
		}
	}
	sum, err := checksum(ctx, f, now.Size, "checking image "+img.label(), progress)
	if err != nil {
		return fmt.Errorf("cannot read image %s: %w", img.label(), err)
	}
	if sum != img.SHA256 {
		return corrupt("is not what was stored (its checksum is wrong)")
	}
	// Not being able to write it down only costs the next check its time.
	_ = l.writeStamp(img.SHA256, now)
	return nil
}

func (img Image) label() string {
	if img.Name != "" {
		return img.Name
	}
	return img.SHA256[:min(12, len(img.SHA256))]
}

func (l *Library) writeStamp(sha string, s stamp) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return writeFile(l.stampPath(sha), append(data, '\n'))
}

// checksum reads size bytes and returns their SHA-256 in hexadecimal.
func checksum(ctx context.Context, r io.Reader, size int64, stage string, progress Progress) (string, error) {
	h := sha256.New()
	_, err := io.CopyBuffer(h, &progressReader{ctx: ctx, r: r, size: size, stage: stage, progress: progress}, make([]byte, 1<<20))
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// progressReader reports how much of size was read, and ends when ctx does.
type progressReader struct {
	ctx      context.Context
	r        io.Reader
	size     int64 // 0 = unknown
	stage    string
	progress Progress

	read, told int64
}

func (p *progressReader) Read(b []byte) (int, error) {
	if p.ctx.Err() != nil {
		return 0, context.Cause(p.ctx)
	}
	n, err := p.r.Read(b)
	p.read += int64(n)
	if p.size > 0 && (p.read-p.told >= p.size/200 || p.told == 0) {
		p.told = p.read
		p.progress.report(p.stage, min(float64(p.read)/float64(p.size), 1))
	}
	return n, err
}
