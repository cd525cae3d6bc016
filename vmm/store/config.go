package store

import (
	"time"

	"msb/vmm/secrets"
)

// Config is what a sandbox was created with. It is written once at creation and changed only by
// commands that change the sandbox itself; what is true of one run is in State. Secrets are never
// part of it.
type Config struct {
	Version int       `json:"version"` // ConfigVersion
	Name    string    `json:"name"`
	Created time.Time `json:"created"`

	Image       string `json:"image"`                  // image name as given, e.g. "debian"
	ImageSHA256 string `json:"image_sha256,omitempty"` // checksum of the root image the disk lies on

	Engine       string `json:"engine"` // "qemu" or "process"
	Accel        string `json:"accel"`  // "auto", "kvm" or "tcg"
	CPUs         int    `json:"cpus"`
	MaxCPUs      int    `json:"max_cpus"`
	MemoryMiB    int    `json:"memory_mib"`
	MaxMemoryMiB int    `json:"max_memory_mib"`
	RootDisk     int64  `json:"root_disk_bytes"`
	Kernel       string `json:"kernel,omitempty"`  // own kernel image, else the default
	Modules      string `json:"modules,omitempty"` // directory of that kernel's modules
	Net          bool   `json:"net"`
	DualPort     bool   `json:"dual_port"` // second port for bulk data

	Env      []string          `json:"env,omitempty"`     // "K=V", default environment of every command
	User     string            `json:"user,omitempty"`    // default user of commands
	Workdir  string            `json:"workdir,omitempty"` // default directory of commands
	Hostname string            `json:"hostname,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`

	Secrets []secrets.Declaration `json:"secrets,omitempty"` // names, hosts and sources, never a value

	IdleTimeout Duration `json:"idle_timeout,omitempty"` // 0 = none
	MaxDuration Duration `json:"max_duration,omitempty"` // 0 = none
}

// ConfigVersion is the version of the config file that this build writes.
const ConfigVersion = 1

// Duration is a time.Duration written in JSON as text such as "90s".
type Duration time.Duration

// MarshalText writes the duration as Go prints it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}
