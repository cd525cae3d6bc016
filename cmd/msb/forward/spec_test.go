package forward

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]Spec{
		"8080:80":             {netip.MustParseAddrPort("127.0.0.1:8080"), 80},
		"8080":                {netip.MustParseAddrPort("127.0.0.1:8080"), 8080},
		"0:80":                {netip.MustParseAddrPort("127.0.0.1:0"), 80},
		"65535:65535":         {netip.MustParseAddrPort("127.0.0.1:65535"), 65535},
		"localhost:8080:80":   {netip.MustParseAddrPort("127.0.0.1:8080"), 80},
		"0.0.0.0:8080:80":     {netip.MustParseAddrPort("0.0.0.0:8080"), 80},
		"[::1]:8080:80":       {netip.MustParseAddrPort("[::1]:8080"), 80},
		"::1:8080:80":         {netip.MustParseAddrPort("[::1]:8080"), 80},
		"[::]:1:2":            {netip.MustParseAddrPort("[::]:1"), 2},
		"[fe80::1%eth0]:1:2":  {netip.MustParseAddrPort("[fe80::1%eth0]:1"), 2},
		"192.168.1.2:443:443": {netip.MustParseAddrPort("192.168.1.2:443"), 443},
	} {
		if got, err := Parse(in); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"":                  `"" is no port`,
		"0":                 "the sandbox's port",
		"8080:":             `"" is no port`,
		":80":               "the host's port",
		"8080:0":            "the sandbox's port",
		"-1:80":             "the host's port",
		"65536:80":          "0 to 65535",
		"http:80":           "the host's port",
		"8080:80x":          "the sandbox's port",
		":8080:80":          "the address is empty",
		"example.org:1:2":   "no address of this host",
		"[1.2.3.4]:1:2":     "no address of this host",
		"[::1:1:2":          "no address of this host",
		"[]:1:2":            "no address of this host",
		"1.2.3:1:2":         "no address of this host",
		"127.0.0.1:80":      "the host's port", // an address and one port
		"127.0.0.1:a:80":    "the host's port",
		"8080:127.0.0.1:80": "the host's port",
	} {
		if got, err := Parse(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", in, got, err, want)
		}
	}
}
