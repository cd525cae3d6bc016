package creds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"msb/turn/durable"
)

// Store is the folder with the credentials that msb keeps itself: one file of
// mode 0600 each, and a list of the names that are in the keyring. It is safe
// for concurrent use, by several processes too.
type Store struct {
	dir     string
	ring    chan struct{} // one use of the keyring at a time
	sandbox func(name, host string) (string, error)
}

// Open returns the store in a folder, which need not exist yet.
func Open(dir string) *Store { return &Store{dir: dir, ring: make(chan struct{}, 1)} }

// ForSandbox is the store for a process that has the secrets of a sandbox: use
// returns one for a request to a host. It is asked for every request.
func (s *Store) ForSandbox(use func(name, host string) (string, error)) *Store {
	return &Store{dir: s.dir, ring: s.ring, sandbox: use}
}

// Stored is one credential that msb keeps.
type Stored struct {
	Name   string `json:"name"`
	Source string `json:"source"` // SourceFile or SourceKeyring
	OAuth  bool   `json:"oauth,omitempty"`
}

// List returns what is stored, by name. No secret is read.
func (s *Store) List() ([]Stored, error) {
	var list []Stored
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list credentials: %w", err)
	}
	for _, e := range entries {
		name, oauth := strings.CutSuffix(e.Name(), oauthSuffix)
		if entry.MatchString(name) && e.Type().IsRegular() {
			list = append(list, Stored{Name: name, Source: SourceFile, OAuth: oauth})
		}
	}
	names, err := s.ringNames()
	for _, name := range names {
		list = append(list, Stored{Name: name, Source: SourceKeyring})
	}
	slices.SortStableFunc(list, func(a, b Stored) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

// Set stores a credential in the keyring or in a file. A source of "" is the
// keyring if there is one that works, else a file; the source used is returned.
func (s *Store) Set(ctx context.Context, source, name string, secret Secret) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	if strings.HasSuffix(name, oauthSuffix) {
		return "", fmt.Errorf("%q cannot name a credential: names that end in %s are logins of MCP servers", name, oauthSuffix)
	}
	text, err := clean(secret.Reveal())
	if err != nil {
		return "", fmt.Errorf("store credential %s: %w", name, err)
	}
	if source == "" {
		source = SourceFile
		if s.keyringWorks(ctx) {
			source = SourceKeyring
		}
	}
	switch source {
	case SourceFile:
		err = s.write(name, []byte(text+"\n"))
	case SourceKeyring:
		err = s.setRing(ctx, name, text)
	default:
		err = fmt.Errorf("nothing can be stored in %q: use keyring or file", source)
	}
	if err != nil {
		return "", fmt.Errorf("store credential %s: %w", name, err)
	}
	return source, nil
}

// setRing puts a credential in the keyring and its name on the list. The name
// goes first: one that is listed and not there does no harm.
func (s *Store) setRing(ctx context.Context, name, text string) error {
	names, err := s.ringNames()
	if err != nil {
		return err
	}
	if err := s.noteRing(ctx, name, true); err != nil {
		return err
	}
	if err := s.keyringSet(ctx, name, text); err != nil {
		if !slices.Contains(names, name) {
			err = errors.Join(err, s.noteRing(ctx, name, false))
		}
		return err
	}
	return nil
}

// Remove removes a stored credential, wherever it is; a login too. None of
// that name is ErrNotFound.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	found := false
	for _, file := range []string{name, name + oauthSuffix} {
		err := os.Remove(filepath.Join(s.dir, file))
		switch {
		case err == nil:
			found = true
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("remove credential %s: %w", name, err)
		}
	}
	names, err := s.ringNames()
	if err != nil {
		return err
	}
	if slices.Contains(names, name) {
		if err := s.keyringDelete(ctx, name); err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("remove credential %s: %w", name, err)
		}
		if err := s.noteRing(ctx, name, false); err != nil {
			return err
		}
		found = true
	}
	if !found {
		return fmt.Errorf("%w: there is no stored credential %q; see `msb creds ls`", ErrNotFound, name)
	}
	return nil
}

// ringList is the file with the names that are in the keyring. The dot keeps it
// apart from credentials.
const ringList = ".keyring.json"

func (s *Store) ringNames() ([]string, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, ringList))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	if err == nil {
		err = json.Unmarshal(b, &names)
	}
	if err != nil {
		return nil, fmt.Errorf("list of keyring credentials %s: %w", filepath.Join(s.dir, ringList), err)
	}
	return names, nil
}

// noteRing adds a name to the list or takes it off.
func (s *Store) noteRing(ctx context.Context, name string, add bool) error {
	unlock, err := s.lock(ctx, ringList)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := s.ringNames()
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == name })
	if add {
		names = append(names, name)
	}
	slices.Sort(names)
	b, err := json.Marshal(names)
	if err != nil {
		return err
	}
	return s.write(ringList, b)
}

// write replaces a file of the store; a crash leaves the old or the new one.
func (s *Store) write(name string, b []byte) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(s.dir, name), b)
}

// lock keeps other processes from what is called name until unlock.
func (s *Store) lock(ctx context.Context, name string) (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, ".lock-"+name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
			select {
			case <-time.After(lockPoll):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
}

// lockPoll is how often a lock that another process holds is tried.
const lockPoll = 20 * time.Millisecond
