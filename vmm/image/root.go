package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ErrNotFound is returned (wrapped) for an image that the library does not have.
var ErrNotFound = errors.New("image not found")

// ErrInUse is returned (wrapped) by Remove for an image that a sandbox is layered on.
var ErrInUse = errors.New("image is in use")

// Default is the name of the image a sandbox gets when none is named.
const Default = "debian"

// Image is an immutable root file system: a raw ext4 file.
type Image struct {
	Name    string    `json:"name"`    // "" for a file that no name stands for any more
	SHA256  string    `json:"sha256"`  // of the file
	Size    int64     `json:"size"`    // bytes; unused ones are holes
	Created time.Time `json:"created"` // UTC
	Source  string    `json:"source"`  // what it was made from
	OS      string    `json:"os"`      // PRETTY_NAME of its os-release, may be empty
	Path    string    `json:"-"`       // the raw file, mode 0444
}

// Unpacker unpacks a root file system tar (plain, size bytes, complete with its end marker) into the empty ext4 file
// system in the file raw. It never unpacks on the host. When it returns, nothing uses raw any more.
type Unpacker func(ctx context.Context, raw string, tar io.Reader, size int64) error

// Options are what building and importing need.
type Options struct {
	Unpack   Unpacker // required
	Progress Progress
}

const (
	imageSuffix  = ".raw"
	recordSuffix = ".json"
)

var (
	namePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._:+-]{0,99}$`)
	shaPattern  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	shaPrefix   = regexp.MustCompile(`^[0-9a-f]{6,64}$`)
)

// CheckName says whether an image can have that name: letters, digits and . _ : + -, at most 100, and not a checksum.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("bad image name %q: use letters, digits and . _ : + - (at most 100, the first a letter or digit)", name)
	}
	if shaPattern.MatchString(name) {
		return fmt.Errorf("bad image name %q: it looks like a checksum", name)
	}
	return nil
}

func (l *Library) rawPath(sha string) string { return filepath.Join(l.imagesDir(), sha+imageSuffix) }

func (l *Library) recordPath(name string) string {
	return filepath.Join(l.imagesDir(), name+recordSuffix)
}

// List returns the images, ordered by name.
func (l *Library) List() ([]Image, error) {
	entries, err := os.ReadDir(l.imagesDir())
	if err != nil {
		return nil, fmt.Errorf("image library: %w", err)
	}
	var images []Image
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok || CheckName(name) != nil {
			continue
		}
		img, err := l.load(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed just now
		}
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	return images, nil
}

// load reads the record of a name.
func (l *Library) load(name string) (Image, error) {
	path := l.recordPath(name)
	data, err := os.ReadFile(path)
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", name, err)
	}
	var img Image
	if err := json.Unmarshal(data, &img); err != nil || img.Name != name || !shaPattern.MatchString(img.SHA256) {
		return Image{}, fmt.Errorf("image %s: its record %s is damaged: %s", name, path, remake(name))
	}
	img.Path = l.rawPath(img.SHA256)
	return img, nil
}

func (l *Library) save(img Image) error {
	data, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(l.recordPath(img.Name), append(data, '\n')); err != nil {
		return fmt.Errorf("image %s: cannot write its record: %w", img.Name, err)
	}
	return nil
}

// remake says how to get an image again.
func remake(name string) string {
	if name == "" {
		return "build or import it again"
	}
	if slices.Contains(Builtin(), name) {
		return fmt.Sprintf("run `msb image build %s`", name)
	}
	return fmt.Sprintf("import it again with `msb image import FILE --tag %s`", name)
}

// Get returns the image with that name, or else the one whose checksum starts with ref (6 hexadecimal digits or more;
// a "sha256:" in front is allowed). The error for one that is missing wraps ErrNotFound and says how to get it.
func (l *Library) Get(ref string) (Image, error) {
	if CheckName(ref) == nil {
		img, err := l.load(ref)
		if !errors.Is(err, fs.ErrNotExist) {
			return img, err
		}
	}
	if prefix := strings.TrimPrefix(ref, "sha256:"); shaPrefix.MatchString(prefix) {
		img, err := l.bySum(prefix)
		if !errors.Is(err, ErrNotFound) {
			return img, err
		}
	}
	if slices.Contains(Builtin(), ref) {
		return Image{}, fmt.Errorf("%w: %s has not been built yet: run `msb image build %s`", ErrNotFound, ref, ref)
	}
	return Image{}, fmt.Errorf("%w: there is none called %s: `msb image ls` shows what there is, "+
		"`msb image build NAME` builds %s, `msb image import FILE --tag NAME` takes a root file system tar",
		ErrNotFound, cleanText(fmt.Sprintf("%.100q", ref)), strings.Join(Builtin(), " or "))
}

func (l *Library) bySum(prefix string) (Image, error) {
	images, err := l.List()
	if err != nil {
		return Image{}, err
	}
	entries, err := os.ReadDir(l.imagesDir())
	if err != nil {
		return Image{}, fmt.Errorf("image library: %w", err)
	}
	var found []Image
	for _, e := range entries {
		sha, ok := strings.CutSuffix(e.Name(), imageSuffix)
		if !ok || !shaPattern.MatchString(sha) || !strings.HasPrefix(sha, prefix) {
			continue
		}
		if i := slices.IndexFunc(images, func(img Image) bool { return img.SHA256 == sha }); i >= 0 {
			found = append(found, images[i])
			continue
		}
		img := Image{SHA256: sha, Path: l.rawPath(sha)}
		if info, err := e.Info(); err == nil {
			img.Size, img.Created = info.Size(), info.ModTime().UTC()
		}
		found = append(found, img)
	}
	switch len(found) {
	case 0:
		return Image{}, ErrNotFound
	case 1:
		return found[0], nil
	default:
		return Image{}, fmt.Errorf("%d images have a checksum that starts with %s: give more of it", len(found), prefix)
	}
}

// Hold keeps Remove and Prune from taking the image's file until release is called: for the time between choosing
// an image and having a sandbox on record that is layered on it.
func (l *Library) Hold(img Image) (release func(), err error) {
	release, err = l.tryLock("image-file-"+img.SHA256, lockShared)
	if err != nil {
		return nil, fmt.Errorf("image %s is just being removed: %w", img.SHA256[:12], err)
	}
	return release, nil
}

// Remove removes a name, and the file when no other name stands for it. inUse is asked, with the file's checksum,
// which sandboxes are layered on it; if there are any, the error wraps ErrInUse and nothing is removed.
func (l *Library) Remove(ctx context.Context, name string, inUse func(sha256 string) ([]string, error)) error {
	release, err := l.lock(ctx, "image-"+name, nil)
	if err != nil {
		return err
	}
	defer release()
	img, err := l.Get(name)
	if err != nil {
		return err
	}
	if img.Name == "" {
		_, err := l.removeFile(img.SHA256, inUse)
		return err
	}
	shared, err := l.namesOf(img.SHA256)
	if err != nil {
		return err
	}
	if len(shared) == 1 {
		if _, err := l.removeFile(img.SHA256, inUse); err != nil {
			return fmt.Errorf("cannot remove image %s: %w", name, err)
		}
	}
	if err := os.Remove(l.recordPath(img.Name)); err != nil {
		return fmt.Errorf("cannot remove image %s: %w", name, err)
	}
	return syncDir(l.imagesDir())
}

// Prune removes the files that no name stands for and no sandbox is layered on (a build anew leaves such files), and
// returns the checksums of those removed.
func (l *Library) Prune(inUse func(sha256 string) ([]string, error)) ([]string, error) {
	entries, err := os.ReadDir(l.imagesDir())
	if err != nil {
		return nil, fmt.Errorf("image library: %w", err)
	}
	var removed []string
	for _, e := range entries {
		sha, ok := strings.CutSuffix(e.Name(), imageSuffix)
		if !ok || !shaPattern.MatchString(sha) {
			continue
		}
		names, err := l.namesOf(sha)
		if err != nil {
			return removed, err
		}
		if len(names) > 0 {
			continue
		}
		switch _, err := l.removeFile(sha, inUse); {
		case errors.Is(err, ErrInUse):
		case err != nil:
			return removed, err
		default:
			removed = append(removed, sha)
		}
	}
	return removed, nil
}

func (l *Library) namesOf(sha string) ([]string, error) {
	images, err := l.List()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, img := range images {
		if img.SHA256 == sha {
			names = append(names, img.Name)
		}
	}
	return names, nil
}

// removeFile removes the file with that checksum unless it is held or a sandbox is layered on it.
func (l *Library) removeFile(sha string, inUse func(string) ([]string, error)) (bool, error) {
	release, err := l.tryLock("image-file-"+sha, lockExclusive)
	if err != nil {
		return false, err
	}
	defer release()
	if inUse != nil {
		users, err := inUse(sha)
		if err != nil {
			return false, err
		}
		if len(users) > 0 {
			return false, fmt.Errorf("%w by %s: remove these sandboxes first", ErrInUse, strings.Join(users, ", "))
		}
	}
	if err := os.Remove(l.stampPath(sha)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.Remove(l.rawPath(sha)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, nil
}
