package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"msb/cmd/msb/terminal"
	"msb/vmm"
)

// Every command has an example in its help and a place in the manual.
func TestEveryCommandIsExplained(t *testing.T) {
	manual, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		if !strings.Contains(c.Example, "msb") {
			t.Errorf("%s: its help has no example", c.CommandPath())
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short text %q", c.CommandPath(), c.Short)
		}
		if !strings.Contains(string(manual), "`"+c.CommandPath()) {
			t.Errorf("%s is not in docs/cli.md", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(newApp(terminal.Test(strings.NewReader(""), os.Stdout, os.Stderr))))
}

// The exit code of every kind of error, from the one table.
func TestExitCodes(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{os.ErrNotExist, 1},
		{&usageError{os.ErrInvalid}, 2},
		{ownFailure(os.ErrInvalid), 125},
		{ownFailure(&usageError{os.ErrInvalid}), 2},
		{ownFailure(&exitError{7, nil}), 7},
		{stopError(fmt.Errorf("x: %w", vmm.ErrForced)), exitNotClean},
	} {
		if got := exitCode(tc.err); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.want)
		}
	}
}
