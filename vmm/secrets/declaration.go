package secrets

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Declaration says that a sandbox has a credential, who may get it and where
// its value is read from. The value itself is never part of it.
type Declaration struct {
	Name  string   `json:"name"`
	Hosts []string `json:"hosts"` // who may get it: names, *.DOMAIN, or addresses
	From  Source   `json:"from,omitzero"`
}

// MaxName and MaxHosts bound a declaration.
const (
	MaxName  = 128
	MaxHosts = 64
)

// CheckName returns an error for a name that no secret may have: it is letters,
// digits and '_', as an environment variable's.
func CheckName(name string) error {
	ok := name != "" && len(name) <= MaxName && (name[0] < '0' || name[0] > '9')
	for _, c := range []byte(name) {
		ok = ok && (c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_')
	}
	if !ok {
		return fmt.Errorf("%.40q is no name for a secret: use letters, digits and '_', as in API_KEY", name)
	}
	return nil
}

// CheckHosts returns the hosts in the form in which they are compared, or an
// error that wraps ErrHosts.
func CheckHosts(hosts []string) ([]string, error) {
	if len(hosts) == 0 {
		return nil, fmt.Errorf("%w: a secret needs at least one host", ErrHosts)
	}
	if len(hosts) > MaxHosts {
		return nil, fmt.Errorf("%w: more than %d hosts", ErrHosts, MaxHosts)
	}
	clean := make([]string, 0, len(hosts))
	for _, h := range hosts {
		name, wild := strings.CutPrefix(h, "*.")
		host, ok := normalHost(name)
		if ok && wild {
			// A whole top-level domain is nobody in particular, and an address has no subdomains.
			_, notAddress := netip.ParseAddr(host)
			ok = strings.Contains(host, ".") && notAddress != nil
			host = "*." + host
		}
		if !ok {
			return nil, fmt.Errorf("%w: %.80q is no host: use a name such as api.example.com, or *.example.com; no port, no path", ErrHosts, h)
		}
		if !slices.Contains(clean, host) {
			clean = append(clean, host)
		}
	}
	return clean, nil
}

// normalHost brings a host name or address into the one form that is compared.
func normalHost(h string) (string, bool) {
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(h, "["), "]")); err == nil && a.Zone() == "" {
		return a.Unmap().String(), true
	}
	h = strings.ToLower(strings.TrimSuffix(h, "."))
	if h == "" || len(h) > 253 {
		return "", false
	}
	for label := range strings.SplitSeq(h, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return "", false
		}
		for _, c := range []byte(label) {
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return "", false
			}
		}
	}
	return h, true
}

// allows tells whether host, in normal form, is one of the hosts. *.DOMAIN is
// everything below DOMAIN and not DOMAIN itself.
func allows(hosts []string, host string) bool {
	return slices.ContainsFunc(hosts, func(h string) bool {
		if domain, wild := strings.CutPrefix(h, "*"); wild {
			return strings.HasSuffix(host, domain) && len(host) > len(domain)
		}
		return h == host
	})
}
