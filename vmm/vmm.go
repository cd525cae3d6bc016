// Package vmm is the public face of the host side: it lists, creates, starts, stops, inspects and
// removes sandboxes. The machine itself runs in a background process of its own (`msb runtime NAME`,
// package vmm/runtime), which this package starts and asks to stop.
package vmm

import (
	"context"
	"errors"
	"time"

	"msb/vmm/secrets"
	"msb/vmm/store"
)

// Errors that callers decide on. They arrive wrapped with the sandbox's name and what to do next.
var (
	ErrNotFound   = store.ErrNotFound                // no such sandbox
	ErrExists     = store.ErrExists                  // create of a name that is taken
	ErrRunning    = errors.New("sandbox is running") // rm or reset of a running sandbox, start of one that runs
	ErrNotRunning = errors.New("sandbox is not running")
	ErrForced     = errors.New("forced, last writes may be lost") // stop had to kill the machine
	ErrOption     = errors.New("invalid option")                  // a value of CreateOptions is out of range
)

// Event tells the person who waits what happens. Stage is one word for the column ("image",
// "sandbox"), Text one line. Warning lines deserve to stand out.
type Event struct {
	Stage   string
	Text    string
	Warning bool
}

// Progress receives events in order, from one goroutine at a time; nil is allowed.
type Progress func(Event)

// CreateOptions say what a sandbox is made of. The zero value of a field means its default.
type CreateOptions struct {
	Name         string // required
	Image        string // default "debian"
	Engine       string // "qemu" (default) or "process"
	Accel        string // "auto" (default), "kvm", "tcg"
	CPUs         int    // default 1
	MaxCPUs      int    // default CPUs
	MemoryMiB    int    // default 512, minimum MinMemoryMiB
	MaxMemoryMiB int    // default MemoryMiB
	RootDisk     int64  // bytes, default 16 GiB (sparse)
	Kernel       string // own kernel image; needs Modules unless all is built in
	Modules      string
	Net          bool
	Env          []string // "K=V"
	User         string   // default "dev"
	Workdir      string   // default "/home/dev"
	Hostname     string   // default Name
	IdleTimeout  time.Duration
	MaxDuration  time.Duration
	Labels       map[string]string
	SinglePort   bool // carry bulk data on the same port as everything else
	NoStart      bool // only make it; state "stopped"
}

// StartOptions say how to start.
type StartOptions struct{}

// StopOptions say how to stop.
type StopOptions struct {
	Timeout time.Duration // for the guest to power itself off; 0 = DefaultStopTimeout
	Force   bool          // do not ask the guest at all; the result is ErrForced only when it lost something
}

// RemoveOptions say how to remove.
type RemoveOptions struct {
	Force bool // stop it first if it runs (at once, its data goes anyway)
}

// Sandbox is what `ls` and `inspect` show.
type Sandbox struct {
	Name          string                `json:"name"`
	State         store.Status          `json:"state"`
	Reason        string                `json:"reason,omitempty"`
	Engine        string                `json:"engine"`
	Accel         string                `json:"accel"` // really used while it runs, else as configured
	Image         string                `json:"image"`
	ImageSHA256   string                `json:"image_sha256,omitempty"`
	Generation    int                   `json:"generation"` // of the running guest agent, 0 when it does not run
	AgentVersion  string                `json:"agent_version,omitempty"`
	CPUs          int                   `json:"cpus"`
	MaxCPUs       int                   `json:"max_cpus"`
	MemoryMiB     int                   `json:"memory_mib"`
	MaxMemoryMiB  int                   `json:"max_memory_mib"`
	RootDisk      int64                 `json:"root_disk_bytes"`
	Net           bool                  `json:"net"`
	Env           []string              `json:"env,omitempty"`
	User          string                `json:"user"`
	Workdir       string                `json:"workdir"`
	Hostname      string                `json:"hostname"`
	Labels        map[string]string     `json:"labels,omitempty"`
	Secrets       []secrets.Declaration `json:"secrets,omitempty"` // without values
	IdleTimeout   store.Duration        `json:"idle_timeout,omitempty"`
	MaxDuration   store.Duration        `json:"max_duration,omitempty"`
	Created       time.Time             `json:"created"`
	Started       time.Time             `json:"started,omitzero"`
	DiskError     string                `json:"disk_error,omitempty"` // the host failed an access to the disk: free space, restart
	Paused        bool                  `json:"paused,omitempty"`     // it runs, and its machine is stopped until it is resumed
	Ended         time.Time             `json:"ended,omitzero"`       // of the last run
	Forced        bool                  `json:"forced,omitempty"`     // the last run ended by force: last writes may be lost
	Directory     string                `json:"directory"`
	AgentSocket   string                `json:"agent_socket"`
	ControlSocket string                `json:"control_socket"`
	TurnSocket    string                `json:"turn_socket"`
	ShellsSocket  string                `json:"shells_socket"`
	TrafficSocket string                `json:"traffic_socket"`
	RuntimePID    int                   `json:"runtime_pid"` // 0 when it does not run
	RuntimeStart  uint64                `json:"-"`           // its start time, see store.State
	EnginePID     int                   `json:"engine_pid"`
	Boot          store.Boot            `json:"boot,omitzero"` // of the last start
	Mounts        []store.Mount         `json:"mounts"`
}

// Running says whether a runtime holds the sandbox.
func (s Sandbox) Running() bool {
	return s.State == store.Running || s.State == store.Starting || s.State == store.Stopping
}

// Limits and defaults of CreateOptions.
const (
	DefaultCPUs        = 1
	DefaultMemoryMiB   = 512
	MinMemoryMiB       = 128
	DefaultRootDisk    = 16 << 30
	MinRootDisk        = 64 << 20
	DefaultStopTimeout = 30 * time.Second
)

// Host is one home of sandboxes. Its methods may be called concurrently, also from several processes.
type Host struct {
	Home *store.Home
	deps Deps
}

// Deps is what a Host needs from the rest of the program.
type Deps struct {
	// Disk makes the disk for a new sandbox (or anew for Reset) from the config's image, checks that the
	// engine can run here, and fills c.ImageSHA256. path does not exist yet.
	Disk func(ctx context.Context, c *store.Config, path string, report Progress) error
	// Executable is the program that is run as "Executable runtime NAME"; "" = os.Executable().
	Executable string
	// Env is added to the runtime's environment.
	Env []string
}

// New is the Host of a home.
func New(home *store.Home, deps Deps) *Host { return &Host{Home: home, deps: deps} }
