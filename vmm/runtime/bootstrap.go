package runtime

import (
	"cmp"
	"strings"

	"msb/protocol/agent"
	"msb/vmm/engine"
	"msb/vmm/store"
)

// Defaults of a guest's commands.
const (
	DefaultUser    = "dev"
	DefaultWorkdir = "/home/dev"
)

// bootstrap is what the guest is told about itself.
func bootstrap(c store.Config, device string, caps engine.Capabilities) agent.BootstrapPayload {
	b := agent.BootstrapPayload{
		Hostname:        cmp.Or(c.Hostname, c.Name),
		User:            cmp.Or(c.User, DefaultUser),
		DefaultCwd:      cmp.Or(c.Workdir, DefaultWorkdir),
		SecurityProfile: agent.SecurityDefault,
	}
	if device != "" {
		b.BlockRoot = &agent.BlockRoot{Kind: agent.RootDiskImage, Device: device, FSType: "ext4"}
	}
	for _, kv := range c.Env {
		k, v, _ := strings.Cut(kv, "=")
		b.DefaultEnv = append(b.DefaultEnv, agent.EnvVar{Key: k, Value: v})
	}
	if c.Net && caps.Net && caps.Boundary {
		// The addresses of QEMU's user-mode network.
		dns := agent.Octets{10, 0, 2, 3}
		b.Network = &agent.Network{
			Interface: "eth0", MAC: agent.Octets{0x52, 0x54, 0x00, 0x12, 0x34, 0x56}, MTU: 1500,
			IPv4: &agent.IPSettings{Address: agent.Octets{10, 0, 2, 15}, PrefixLen: 24, Gateway: agent.Octets{10, 0, 2, 2}, DNS: &dns},
		}
	}
	return b
}
