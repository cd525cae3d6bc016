package turn

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"msb/turn/durable"
)

var (
	// ErrNoSession reports a reference that no session has.
	ErrNoSession = errors.New("no such session")
	// ErrSessionActive reports a session that is open, here or in another process.
	ErrSessionActive = errors.New("session is active")
	// ErrSessionName reports a name that cannot be one.
	ErrSessionName = errors.New("not a session name")
)

// Store keeps sessions on disk, a directory each (0700): session.json, the
// transcript, and a lock that is held while the session is open.
type Store struct{ dir string }

// OpenStore returns the store in a directory, which need not exist.
func OpenStore(dir string) *Store { return &Store{dir: dir} }

// Dir is a session's directory.
func (s *Store) Dir(id string) string { return filepath.Join(s.dir, id) }

// TranscriptPath is where a session's transcript is.
func (s *Store) TranscriptPath(id string) string { return filepath.Join(s.Dir(id), "transcript.jsonl") }

func (s *Store) recordPath(id string) string { return filepath.Join(s.Dir(id), "session.json") }

var idPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Create makes a session. The name may be empty.
func (s *Store) Create(name, model string) (Record, error) {
	var id [16]byte
	rand.Read(id[:])
	now := time.Now().UTC()
	r := Record{ID: hex.EncodeToString(id[:]), Name: name, Created: now, Used: now, Model: model}
	if err := s.checkName(name, r.ID); err != nil {
		return Record{}, err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return Record{}, fmt.Errorf("create session: %w", err)
	}
	if err := os.Mkdir(s.Dir(r.ID), 0o700); err != nil {
		return Record{}, fmt.Errorf("create session: %w", err)
	}
	if err := s.Save(r); err != nil {
		os.RemoveAll(s.Dir(r.ID))
		return Record{}, err
	}
	return r, nil
}

// checkName refuses what is no name or another session's.
func (s *Store) checkName(name, id string) error {
	if name == "" {
		return nil
	}
	if len(name) > 128 || !utf8.ValidString(name) || strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(r rune) bool {
		return r == '/' || r != ' ' && !unicode.IsGraphic(r) || unicode.Is(unicode.Zs, r) && r != ' '
	}) {
		return fmt.Errorf("%w: %q; use up to 128 bytes of visible characters without a slash", ErrSessionName, clip(name, 160))
	}
	if idPattern.MatchString(name) {
		return fmt.Errorf("%w: %q looks like an id", ErrSessionName, name)
	}
	all, err := s.List()
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Name == name && r.ID != id {
			return fmt.Errorf("%w: %q is the name of session %s", ErrSessionName, name, r.ID[:8])
		}
	}
	return nil
}

// Save writes a session's record.
func (s *Store) Save(r Record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	if err := durable.WriteFile(s.recordPath(r.ID), append(b, '\n')); err != nil {
		return fmt.Errorf("save session %s: %w", r.ID[:8], err)
	}
	return nil
}

// Load reads the record of a session by its whole id.
func (s *Store) Load(id string) (Record, error) {
	var r Record
	if !idPattern.MatchString(id) {
		return r, fmt.Errorf("%w: %q", ErrNoSession, clip(id, 160))
	}
	b, err := os.ReadFile(s.recordPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w: %s", ErrNoSession, id)
	}
	if err != nil {
		return r, fmt.Errorf("read session: %w", err)
	}
	if err := json.Unmarshal(b, &r); err != nil || r.ID != id {
		return r, fmt.Errorf("session %s is damaged: %s does not describe it: %v", id[:8], s.recordPath(id), err)
	}
	return r, nil
}

// List returns the sessions, last used first. One whose record is damaged is
// left out.
func (s *Store) List() ([]Record, error) {
	dirs, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	list := []Record{}
	for _, d := range dirs {
		if r, err := s.Load(d.Name()); err == nil {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Record) int {
		return cmp.Or(b.Used.Compare(a.Used), strings.Compare(a.ID, b.ID))
	})
	return list, nil
}

// Find finds a session by its name, its id, or the start of its id.
func (s *Store) Find(ref string) (Record, error) {
	all, err := s.List()
	if err != nil {
		return Record{}, err
	}
	var found []Record
	for _, r := range all {
		if r.Name == ref && ref != "" || r.ID == ref {
			return r, nil
		}
		if len(ref) >= 3 && strings.HasPrefix(r.ID, ref) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return Record{}, fmt.Errorf("%w: %q; `msb session ls` shows them", ErrNoSession, clip(ref, 160))
	case 1:
		return found[0], nil
	}
	return Record{}, fmt.Errorf("%q is the start of %d session ids; give more of it", ref, len(found))
}

// Rename names a session; an empty name takes it away.
func (s *Store) Rename(ref, name string) (Record, error) {
	r, err := s.Find(ref)
	if err != nil {
		return r, err
	}
	if err := s.checkName(name, r.ID); err != nil {
		return r, err
	}
	r.Name = name
	return r, s.Save(r)
}

// Remove removes a session that is not open, with its transcript.
func (s *Store) Remove(ref string) (Record, error) {
	r, err := s.Find(ref)
	if err != nil {
		return r, err
	}
	lock, err := s.Lock(r.ID)
	if err != nil {
		return r, fmt.Errorf("remove session %s: %w", r.ID[:8], err)
	}
	defer lock.Close()
	if err := os.RemoveAll(s.Dir(r.ID)); err != nil {
		return r, fmt.Errorf("remove session %s: %w", r.ID[:8], err)
	}
	return r, nil
}

// Lock takes the right to open a session until the file is closed or the
// process ends. It is ErrSessionActive when another one has it.
func (s *Store) Lock(id string) (*os.File, error) {
	path := filepath.Join(s.Dir(id), "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNoSession, id)
	}
	if err != nil {
		return nil, fmt.Errorf("lock session: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("session %s: %w", id[:8], ErrSessionActive)
		}
		return nil, fmt.Errorf("lock session: %w", err)
	}
	// Remove may have taken the directory away meanwhile.
	if _, err := os.Stat(s.recordPath(id)); err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: %s", ErrNoSession, id)
	}
	return f, nil
}
