package boot

import (
	"encoding/binary"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// rtnetlink is a connection to the kernel's network configuration.
type rtnetlink struct {
	fd  int
	seq uint32
}

func openNetlink() (*rtnetlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &rtnetlink{fd: fd}, nil
}

func (n *rtnetlink) close() { _ = unix.Close(n.fd) }

// attr appends one attribute, padded.
func attr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// do sends one request and waits for the kernel's answer.
func (n *rtnetlink) do(kind, flags uint16, body []byte) error {
	n.seq++
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	msg = binary.NativeEndian.AppendUint32(msg, n.seq)
	msg = binary.NativeEndian.AppendUint32(msg, 0)
	msg = append(msg, body...)
	if err := unix.Sendto(n.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 8192)
	for {
		size, _, err := unix.Recvfrom(n.fd, reply, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(reply[:size])
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.Header.Seq != n.seq || m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
				return syscall.Errno(-code)
			}
			return nil
		}
	}
}

// setLink brings a link up, with a name and an MTU where they are given.
func (n *rtnetlink) setLink(index int, name string, mtu uint32, up bool) error {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	if up {
		binary.NativeEndian.PutUint32(b[8:], unix.IFF_UP)
	}
	binary.NativeEndian.PutUint32(b[12:], unix.IFF_UP)
	if name != "" {
		b = attr(b, unix.IFLA_IFNAME, append([]byte(name), 0))
	}
	if mtu != 0 {
		b = attr(b, unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, mtu))
	}
	return n.do(unix.RTM_NEWLINK, 0, b)
}

// addAddress gives a link an address.
func (n *rtnetlink) addAddress(index int, ip net.IP, prefix uint8) error {
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1] = family(ip), prefix
	if b[0] == unix.AF_INET6 {
		b[2] = unix.IFA_F_NODAD // nobody else is on the link, and services must not wait for the check
	}
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	b = attr(b, unix.IFA_LOCAL, ip)
	b = attr(b, unix.IFA_ADDRESS, ip)
	return n.do(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b)
}

// addDefaultRoute sends everything else through a gateway.
func (n *rtnetlink) addDefaultRoute(index int, gateway net.IP) error {
	b := make([]byte, unix.SizeofRtMsg)
	b[0] = family(gateway)
	b[4] = unix.RT_TABLE_MAIN
	b[5] = unix.RTPROT_BOOT
	b[6] = unix.RT_SCOPE_UNIVERSE
	b[7] = unix.RTN_UNICAST
	b = attr(b, unix.RTA_GATEWAY, gateway)
	b = attr(b, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	return n.do(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b)
}

func family(ip net.IP) byte {
	if len(ip) == net.IPv4len {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
