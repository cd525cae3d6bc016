package tui

import (
	"testing"
)

func TestRigRuns(t *testing.T) {
	r, err := newRig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r.close()
}
