package forward

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Spec is one port of this host that leads to a port inside a sandbox.
type Spec struct {
	Host  netip.AddrPort // where to listen; port 0 is any free one
	Guest uint16         // the port inside
}

// loopback is where a forward listens that names no address: only this host reaches it.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Parse reads [ADDR:]PORT:PORT, the host's side first. PORT alone is the same port on both sides. An IPv6 address may
// stand in brackets.
func Parse(s string) (Spec, error) {
	host, guest, pair := cutLast(s)
	if !pair {
		host, guest = s, s
	}
	addr, port, named := cutLast(host)
	if !named {
		addr, port = "", host
	}
	var spec Spec
	var err error
	if spec.Guest, err = parsePort(guest, 1); err != nil {
		return Spec{}, fmt.Errorf("%q: the sandbox's port: %w", s, err)
	}
	p, err := parsePort(port, 0)
	if err != nil {
		return Spec{}, fmt.Errorf("%q: the host's port: %w", s, err)
	}
	ip := loopback
	if named {
		if ip, err = parseAddr(addr); err != nil {
			return Spec{}, fmt.Errorf("%q: %w", s, err)
		}
	}
	spec.Host = netip.AddrPortFrom(ip, p)
	return spec, nil
}

// cutLast splits at the last colon that is not inside brackets.
func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i < strings.LastIndexByte(s, ']') {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func parsePort(s string, least uint64) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n < least {
		return 0, fmt.Errorf("%q is no port: a number from %d to 65535; write [ADDR:]PORT:PORT", s, least)
	}
	return uint16(n), nil
}

func parseAddr(s string) (netip.Addr, error) {
	if s == "localhost" {
		return loopback, nil
	}
	if s == "" {
		return netip.Addr{}, errors.New("the address is empty: leave out the colon for this host only, or write 0.0.0.0 for everybody")
	}
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	ip, err := netip.ParseAddr(bare)
	if err != nil || bare != s && ip.Is4() {
		return netip.Addr{}, fmt.Errorf("%q is no address of this host: write one such as 127.0.0.1 or [::1]", s)
	}
	return ip, nil
}
