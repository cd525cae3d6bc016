package tui

import (
	"context"
	"io"

	"msb/protocol/turnrpc"
	"msb/tui/keymap"
	"msb/vmm"
)

// Sandboxes is what the workstation does with sandboxes; *vmm.Host is one.
type Sandboxes interface {
	List(ctx context.Context) ([]vmm.Sandbox, error)
	Start(ctx context.Context, name string, o vmm.StartOptions, report vmm.Progress) (vmm.Sandbox, error)
	Stop(ctx context.Context, name string, o vmm.StopOptions) error
	Remove(ctx context.Context, name string, o vmm.RemoveOptions) error
}

// NewBox is a sandbox to be made.
type NewBox struct {
	Name, Image     string
	CPUs, MemoryMiB int
	Net             bool
}

// Options configure the workstation.
type Options struct {
	Host Sandboxes
	// Name is the sandbox to open; "" takes the only one, or shows the list.
	Name string
	// Prompt stands ready in a sandbox that has no session yet.
	Prompt string
	// Keys are the user's keys; nil: those of the table.
	Keys *keymap.Map
	// Notify is a command that tells the user something when the terminal is not
	// in focus; the text is its last argument. Empty: none.
	Notify []string
	// Create makes and starts a sandbox; report gets what it is doing. nil: none
	// can be made on the screen.
	Create func(ctx context.Context, b NewBox, report func(string)) error
	// Images are the names of images to choose from.
	Images func() []string
	// Copy copies a file or a folder with all in it: from this machine into a
	// folder of a sandbox, or (up is false) the other way. nil: it cannot.
	Copy func(ctx context.Context, sb vmm.Sandbox, up bool, from, to string) error
	// Settings is what the tab of settings works on; nil: there is none.
	Settings Settings
	// Shell is the program of a shell, as it is started in the sandbox.
	Shell []string
	// Cost is the price of what a model used, for people; nil: not known.
	Cost func(model string, u turnrpc.Usage) string
	// Diff is what changed in a sandbox's workspace since it was brought in, as
	// a patch; nil asks the session's agent instead.
	Diff func(ctx context.Context, sb vmm.Sandbox) (string, error)
	// Audit is the path of a sandbox's audit log; nil: none.
	Audit func(sb vmm.Sandbox) string

	// In, Out and Env are the terminal; nil: those of the process.
	In  io.Reader
	Out io.Writer
	Env []string
}
