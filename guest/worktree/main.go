// Package worktree reads and writes trees of files for the host: the other end
// of protocol/worktree, run as `msb-guest worktree scan|unpack`. What the
// sandbox's own users do to the tree meanwhile cannot lead it out of the tree:
// links are never followed and every step is made from an open folder.
package worktree

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"msb/guest/exec"
)

// Main runs the mode and returns its exit code.
func Main(args []string) int {
	err := run(args, os.Stdin, os.Stdout)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "msb-guest worktree:", err)
	var usage *usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) == 0 {
		return &usageError{"scan or unpack?"}
	}
	flags := flag.NewFlagSet("worktree", flag.ContinueOnError)
	root := flags.String("root", "", "folder of the tree")
	all := flags.Bool("all", false, "scan: no file is hidden by ignore patterns")
	owner := flags.String("owner", "dev", "unpack: user that the files belong to")
	empty := flags.Bool("empty", false, "unpack: refuse a folder that is not empty")
	clear := flags.Bool("clear", false, "unpack: empty the folder first")
	if err := flags.Parse(args[1:]); err != nil {
		return &usageError{err.Error()}
	}
	if *root == "" || flags.NArg() > 0 {
		return &usageError{"--root FOLDER is needed, and nothing after the flags"}
	}
	switch args[0] {
	case "scan":
		return scan(*root, *all, in, out)
	case "unpack":
		unix.Umask(0)
		account, err := (&exec.Accounts{}).Lookup(*owner)
		if err != nil {
			return fmt.Errorf("owner %q: %w", *owner, err)
		}
		return unpack(*root, start{empty: *empty, clear: *clear}, int(account.UID), int(account.GID), in, out)
	}
	return &usageError{fmt.Sprintf("mode %q: there are scan and unpack", args[0])}
}
