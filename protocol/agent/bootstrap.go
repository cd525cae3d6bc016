package agent

// BootstrapPayload configures a newly launched guest; one frame, first on the
// port. Everything but SecurityProfile may be missing.
type BootstrapPayload struct {
	BlockRoot       *BlockRoot   `cbor:"block_root,omitempty"`
	DirMounts       []DirMount   `cbor:"dir_mounts,omitempty"`
	FileMounts      []FileMount  `cbor:"file_mounts,omitempty"`
	DiskMounts      []DiskMount  `cbor:"disk_mounts,omitempty"`
	TmpfsMounts     []TmpfsMount `cbor:"tmpfs_mounts,omitempty"`
	Hostname        string       `cbor:"hostname,omitempty"`
	HostAlias       string       `cbor:"host_alias,omitempty"`
	Network         *Network     `cbor:"network,omitempty"`
	Rlimits         []Rlimit     `cbor:"rlimits,omitempty"`
	User            string       `cbor:"user,omitempty"`
	DefaultCwd      string       `cbor:"default_cwd,omitempty"`
	DefaultEnv      []EnvVar     `cbor:"default_env,omitempty"`
	SecurityProfile string       `cbor:"security_profile" wire:"optional"`
	HandoffInit     *HandoffInit `cbor:"handoff_init,omitempty"`
}

func (b *BootstrapPayload) SetDefaults() { b.SecurityProfile = SecurityDefault }

// Security profiles.
const (
	SecurityDefault    = "default"
	SecurityRestricted = "restricted" // no_new_privs, no CAP_SYS_ADMIN
)

// Kinds of a block root and of its upper layer.
const (
	RootDiskImage = "disk-image"
	RootOCIErofs  = "oci-erofs"
	UpperDevice   = "device"
	UpperTmpfs    = "tmpfs"
)

// BlockRoot says what to mount as the root file system.
type BlockRoot struct {
	Kind   string     `cbor:"kind"`
	Device string     `cbor:"device,omitempty"` // disk-image
	FSType string     `cbor:"fstype,omitempty"`
	Lower  string     `cbor:"lower,omitempty"` // oci-erofs
	Upper  *RootUpper `cbor:"upper,omitempty"`
}

// RootUpper is the writable layer over an erofs root.
type RootUpper struct {
	Kind    string  `cbor:"kind"`
	Device  string  `cbor:"device,omitempty"`
	FSType  string  `cbor:"fstype,omitempty"`
	SizeMiB *uint32 `cbor:"size_mib,omitempty"`
}

// MountFlags restrict a mount.
type MountFlags struct {
	ReadOnly bool `cbor:"readonly" wire:"optional"`
	NoExec   bool `cbor:"noexec" wire:"optional"`
	NoSUID   bool `cbor:"nosuid" wire:"optional"`
	NoDev    bool `cbor:"nodev" wire:"optional"`
}

// DirMount is a virtio-fs share by tag.
type DirMount struct {
	Tag       string     `cbor:"tag"`
	GuestPath string     `cbor:"guest_path"`
	Flags     MountFlags `cbor:"flags" wire:"optional"`
}

// FileMount is one file of a share.
type FileMount struct {
	Tag       string     `cbor:"tag"`
	Filename  string     `cbor:"filename"`
	GuestPath string     `cbor:"guest_path"`
	Flags     MountFlags `cbor:"flags" wire:"optional"`
}

// DiskMount is a block device by virtio serial number.
type DiskMount struct {
	ID        string     `cbor:"id"`
	GuestPath string     `cbor:"guest_path"`
	FSType    *string    `cbor:"fstype,omitempty"`
	Flags     MountFlags `cbor:"flags" wire:"optional"`
}

// TmpfsMount is a file system in guest memory.
type TmpfsMount struct {
	Path    string     `cbor:"path"`
	SizeMiB *uint32    `cbor:"size_mib,omitempty"`
	Mode    *uint32    `cbor:"mode,omitempty"`
	Flags   MountFlags `cbor:"flags" wire:"optional"`
}

// Network is a static configuration of one interface.
type Network struct {
	Interface string      `cbor:"interface"`
	MAC       Octets      `cbor:"mac"` // 6
	MTU       uint16      `cbor:"mtu"`
	IPv4      *IPSettings `cbor:"ipv4,omitempty"`
	IPv6      *IPSettings `cbor:"ipv6,omitempty"`
}

// IPSettings holds addresses of 4 or of 16 octets.
type IPSettings struct {
	Address   Octets  `cbor:"address"`
	PrefixLen uint8   `cbor:"prefix_len"`
	Gateway   Octets  `cbor:"gateway"`
	DNS       *Octets `cbor:"dns,omitempty"`
}

// EnvVar is one variable of the default environment.
type EnvVar struct {
	Key   string `cbor:"key"`
	Value string `cbor:"value"`
}

// HandoffInit is a program that takes over as PID 1.
type HandoffInit struct {
	Cmd  string   `cbor:"cmd"`
	Args []string `cbor:"args,omitempty"`
	Cwd  *string  `cbor:"cwd,omitempty"`
	Env  []EnvVar `cbor:"env,omitempty"`
}
