package creds

import (
	"context"
	"errors"
	"fmt"

	"github.com/zalando/go-keyring"
)

// service is the name of msb's entries in the keyring.
const service = "msb"

// ErrNoKeyring reports a machine without a keyring that answers, such as one
// without a desktop.
var ErrNoKeyring = errors.New("there is no working keyring on this machine")

// withKeyring runs one use of the keyring. The library knows no contexts, and a
// locked keyring waits for its user: the caller goes on after a while, and the
// next use waits for this one.
func (s *Store) withKeyring(ctx context.Context, use func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, keyringTimeout, fmt.Errorf("the keyring did not answer in %v: is it locked?", keyringTimeout))
	defer cancel()
	select {
	case s.ring <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	done := make(chan error, 1)
	go func() { // ends with the library's call; s.ring allows only one
		defer func() { <-s.ring }()
		done <- use()
	}()
	select {
	case err := <-done:
		switch {
		case errors.Is(err, keyring.ErrNotFound):
			return ErrNotFound
		case err != nil:
			return fmt.Errorf("%w (%w): keep the key in a file instead, with `msb creds set NAME --source file`", ErrNoKeyring, err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Store) keyringGet(ctx context.Context, name string) (string, error) {
	var text string
	got := make(chan string, 1)
	err := s.withKeyring(ctx, func() error {
		t, err := keyring.Get(service, name)
		got <- t
		return err
	})
	if err == nil {
		text = <-got
	}
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w; store it with `msb creds set %s`", err, name)
	}
	return text, err
}

func (s *Store) keyringSet(ctx context.Context, name, text string) error {
	return s.withKeyring(ctx, func() error { return keyring.Set(service, name, text) })
}

func (s *Store) keyringDelete(ctx context.Context, name string) error {
	return s.withKeyring(ctx, func() error { return keyring.Delete(service, name) })
}

// keyringWorks tells whether there is a keyring that answers.
func (s *Store) keyringWorks(ctx context.Context) bool {
	_, err := s.keyringGet(ctx, "is-there-a-keyring")
	return err == nil || errors.Is(err, ErrNotFound)
}
