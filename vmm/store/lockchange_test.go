package store

import (
	"context"
	"errors"
	"testing"
	"time"
)

// One change of a sandbox at a time: the second waits for the first, as long as it likes.
func TestLockChange(t *testing.T) {
	h := home(t)
	create(t, h, "x")
	first, err := h.LockChange(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.LockChange(short, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is held: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := h.LockChange(t.Context(), "x")
		if err == nil {
			err = l.Unlock()
		}
		got <- err
	}()
	if err := first.Unlock(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	if _, err := h.LockChange(t.Context(), "nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
}
