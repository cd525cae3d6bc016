package boot

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"msb/protocol/agent"
)

// setHostname names the machine.
func setHostname(b *agent.BootstrapPayload) error {
	if b.Hostname == "" {
		return nil
	}
	if err := unix.Sethostname([]byte(b.Hostname)); err != nil {
		return fmt.Errorf("set the host name %q: %w", b.Hostname, err)
	}
	addHost("127.0.1.1", b.Hostname)
	return nil
}

// setNetwork brings the loopback up and, when the bootstrap has one, the link to the host.
func setNetwork(b *agent.BootstrapPayload) error {
	nl, err := openNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	if lo, err := net.InterfaceByName("lo"); err == nil {
		if err := nl.setLink(lo.Index, "", 0, true); err != nil {
			return fmt.Errorf("bring the loopback up: %w", err)
		}
	}
	n := b.Network
	if n == nil {
		return nil
	}
	index, err := findLink(n)
	if err != nil {
		return err
	}
	if err := nl.setLink(index, n.Interface, uint32(n.MTU), true); err != nil {
		return fmt.Errorf("bring network interface %s up: %w", n.Interface, err)
	}
	var servers []string
	for _, ip := range []*agent.IPSettings{n.IPv4, n.IPv6} {
		if ip == nil {
			continue
		}
		if err := setAddress(nl, index, ip); err != nil {
			return fmt.Errorf("network interface %s: %w", n.Interface, err)
		}
		if ip.DNS != nil {
			servers = append(servers, net.IP(*ip.DNS).String())
		}
	}
	if len(servers) > 0 {
		setResolver(servers)
	}
	if b.HostAlias != "" && n.IPv4 != nil {
		addHost(net.IP(n.IPv4.Gateway).String(), b.HostAlias)
	}
	return nil
}

// findLink finds the interface by its hardware address, else by its name, else takes the only one there is.
func findLink(n *agent.Network) (int, error) {
	all, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("list network interfaces: %w", err)
	}
	var others []net.Interface
	for _, i := range all {
		switch {
		case i.Flags&net.FlagLoopback != 0:
		case len(n.MAC) == 6 && bytes.Equal(i.HardwareAddr, n.MAC):
			return i.Index, nil
		default:
			others = append(others, i)
		}
	}
	for _, i := range others {
		if i.Name == n.Interface || len(others) == 1 {
			return i.Index, nil
		}
	}
	return 0, fmt.Errorf("there is no network interface %s (%s): does the machine have a network card, and its driver?",
		n.Interface, net.HardwareAddr(n.MAC))
}

func setAddress(nl *rtnetlink, index int, ip *agent.IPSettings) error {
	for _, a := range [][]byte{ip.Address, ip.Gateway} {
		if len(a) != net.IPv4len && len(a) != net.IPv6len {
			return fmt.Errorf("an address of %d bytes", len(a))
		}
	}
	if err := nl.addAddress(index, net.IP(ip.Address), ip.PrefixLen); err != nil {
		return fmt.Errorf("set address %s/%d: %w", net.IP(ip.Address), ip.PrefixLen, err)
	}
	if err := nl.addDefaultRoute(index, net.IP(ip.Gateway)); err != nil {
		return fmt.Errorf("set gateway %s: %w", net.IP(ip.Gateway), err)
	}
	return nil
}

// setResolver names the DNS servers. It replaces a link that some image's own network service would have filled.
func setResolver(servers []string) {
	var text strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&text, "nameserver %s\n", s)
	}
	const path = "/etc/resolv.conf"
	if old, err := os.ReadFile(path); err == nil && string(old) == text.String() {
		return
	}
	if err := replaceFile(path, []byte(text.String()), 0o644); err != nil {
		logf("name resolution may not work: %v", err)
	}
}

// addHost gives an address a name unless the name is known already.
func addHost(address, name string) {
	const path = "/etc/hosts"
	old, _ := os.ReadFile(path)
	for line := range strings.Lines(string(old)) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 {
			for _, n := range f[1:] {
				if n == name {
					return
				}
			}
		}
	}
	if len(old) > 0 && !bytes.HasSuffix(old, []byte("\n")) {
		old = append(old, '\n')
	}
	if err := replaceFile(path, fmt.Appendf(old, "%s\t%s\n", address, name), 0o644); err != nil {
		logf("%s is not in %s: %v", name, path, err)
	}
}

// replaceFile writes a file whole or not at all. A link at path is replaced, not followed.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	tmp := path + ".msb-new"
	_ = os.Remove(tmp)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}
