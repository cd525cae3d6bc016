package image

import (
	"context"
	"errors"
	"io"
	"time"
)

// ErrNotFound is returned (wrapped) for an image that the library does not have.
var ErrNotFound = errors.New("image not found")

// ErrInUse is returned (wrapped) by Remove for an image that a sandbox is layered on.
var ErrInUse = errors.New("image is in use")

// ErrCorrupt is returned (wrapped) by Verify for an image whose file is missing or not what was stored.
var ErrCorrupt = errors.New("image is corrupt")

// Default is the name of the image a sandbox gets when none is named.
const Default = "debian"

// Image is an immutable root file system: a raw ext4 file.
type Image struct {
	Name    string    `json:"name"`
	SHA256  string    `json:"sha256"` // of the file
	Size    int64     `json:"size"`   // bytes
	Created time.Time `json:"created"`
	Source  string    `json:"source"` // what it was made from: "built-in", or the name of the tar
	OS      string    `json:"os"`     // PRETTY_NAME of its os-release, may be empty
	Path    string    `json:"-"`      // the raw file, mode 0444
}

// Unpacker unpacks a root file system tar (plain, size bytes) into the empty ext4 file system in the raw file. It
// never unpacks on the host.
type Unpacker func(ctx context.Context, raw string, tar io.Reader, size int64) error

// Options are what building and importing need.
type Options struct {
	Unpack   Unpacker // required
	Progress Progress
}

// Builtin returns the names that Build knows, the default first.
func Builtin() []string { return []string{"debian", "tiny"} }

// Build builds the built-in image name ("debian" or "tiny"), anew if the library has one already.
func (l *Library) Build(ctx context.Context, name string, o Options) (Image, error) {
	return Image{}, errors.New("not there yet")
}

// Import stores the root file system in tar (plain, or compressed with gzip, xz or zstd) as image name. source says
// where it came from.
func (l *Library) Import(ctx context.Context, name, source string, tar io.Reader, o Options) (Image, error) {
	return Image{}, errors.New("not there yet")
}

// List returns the images by name.
func (l *Library) List() ([]Image, error) { return nil, errors.New("not there yet") }

// Get returns the image with that name or whose checksum starts with ref (6 hex digits or more). The error for one
// that is missing wraps ErrNotFound and says how to get it.
func (l *Library) Get(ref string) (Image, error) { return Image{}, errors.New("not there yet") }

// Remove removes the name, and the file when no other name stands for it. inUse is asked with the file's checksum
// which sandboxes are layered on it; if there are any, the error wraps ErrInUse and nothing is removed.
func (l *Library) Remove(name string, inUse func(sha256 string) ([]string, error)) error {
	return errors.New("not there yet")
}

// Verify checks that the image's file is what was stored. The whole file is read only when its size, time or inode
// differ from those at the last check. The error wraps ErrCorrupt.
func (l *Library) Verify(ctx context.Context, img Image, progress Progress) error {
	return errors.New("not there yet")
}
