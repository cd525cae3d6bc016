package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"
)

// checker looks at the meaning of what was decoded; the nodes give the places.
type checker struct {
	source string
	top    *yaml.Node
}

// child is the value of a key of a mapping, nil if it has none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// at finds the place of an item's key, or of the item if it has no such key.
func at(item *yaml.Node, key string) *yaml.Node {
	if n := child(item, key); n != nil {
		return n
	}
	return item
}

func (c checker) config(conf *Config) error {
	d := decoder{c.source}
	seen := make(map[string]bool)
	for i, m := range conf.Models {
		item, path := child(c.top, "models").Content[i], fmt.Sprintf("models[%d]", i)
		if seen[m.Name] {
			return d.fail(at(item, "name"), path, "there is another model profile %q", m.Name)
		}
		seen[m.Name] = true
		if key, err := m.check(); err != nil {
			return d.fail(at(item, key), path, "%v", err)
		}
	}
	if conf.Approvals.Timeout < 0 {
		return d.fail(at(child(c.top, "approvals"), "timeout"), "approvals", "timeout must not be negative")
	}
	if n := conf.DefaultModel; n != "" && !seen[n] && n != Demo {
		return d.fail(child(c.top, "default_model"), "default_model", "there is no model profile %q", n)
	}
	seen = make(map[string]bool)
	for i, s := range conf.MCPServers {
		item, path := child(c.top, "mcp_servers").Content[i], fmt.Sprintf("mcp_servers[%d]", i)
		if seen[s.Name] {
			return d.fail(at(item, "name"), path, "there is another MCP server %q", s.Name)
		}
		seen[s.Name] = true
		if key, err := s.check(); err != nil {
			return d.fail(at(item, key), path, "%v", err)
		}
	}
	return nil
}

var (
	profileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}$`)
	serverName  = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	label       = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	variable    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Check refuses a profile that cannot work.
func (m Model) Check() error {
	_, err := m.check()
	return err
}

// check also names the key that is wrong.
func (m Model) check() (key string, err error) {
	switch {
	case m.Name == "":
		return "name", errors.New("a model profile needs a name")
	case !profileName.MatchString(m.Name):
		return "name", fmt.Errorf("%q cannot name a profile: use up to 100 letters, digits and . _ : / -, a letter or digit first", m.Name)
	case m.Provider == "":
		return "provider", errors.New("a model profile needs a provider: openai, anthropic, xai, demo, or any name together with a base_url")
	case !label.MatchString(m.Provider):
		return "provider", fmt.Errorf("%q cannot be a provider: use a-z, 0-9 and . _ -", m.Provider)
	}
	if m.Scripted() {
		switch {
		case m.BaseURL != "":
			return "base_url", errors.New("the scripted model has no address")
		case m.Credential != nil:
			return "credential", errors.New("the scripted model needs no credential")
		}
		return "", nil
	}
	if m.Model == "" {
		return "model", errors.New("a model profile needs the model's name")
	}
	if m.BaseURL == "" && baseURLs[m.Provider] == "" {
		return "base_url", fmt.Errorf("unsupported provider %q: give its base_url", m.Provider)
	}
	m.complete()
	u, err := url.Parse(m.BaseURL)
	if err == nil {
		err = checkURL(u, m.Loopback)
	}
	if err == nil && (u.RawQuery != "" || u.Fragment != "") {
		err = errors.New("a base_url has no query and no fragment")
	}
	if err != nil {
		return "base_url", err
	}
	if m.API != APIChat && m.API != APIMessages {
		return "api", fmt.Errorf("unknown api %q: use %s or %s", m.API, APIChat, APIMessages)
	}
	if m.Credential != nil {
		if err := m.Credential.Check(); err != nil {
			return "credential", err
		}
	}
	for _, h := range m.Hosts {
		if strings.ContainsAny(h, "/@?# *") || h == "" {
			return "hosts", fmt.Errorf("%q is not a host: write example.com or example.com:8443", h)
		}
	}
	if !m.AllowsHost(u) {
		return "hosts", fmt.Errorf("hosts does not contain %s, the host of base_url", u.Host)
	}
	switch {
	case m.MaxTokens < 0:
		return "max_tokens", errors.New("max_tokens must not be negative")
	case m.ContextWindow != 0 && m.ContextWindow < MinContextWindow:
		return "context_window", fmt.Errorf("context_window must be %d tokens or more", MinContextWindow)
	case m.ContextWindow > 1<<30:
		return "context_window", errors.New("context_window is a number of tokens")
	case *m.Retries < 0 || *m.Retries > MaxRetries:
		return "retries", fmt.Errorf("retries must be 0 to %d", MaxRetries)
	case m.Price != nil && (m.Price.Input < 0 || m.Price.Output < 0):
		return "price", errors.New("a price must not be negative")
	}
	return "", nil
}

// Check refuses a server that cannot work.
func (s Server) Check() error {
	_, err := s.check()
	return err
}

func (s Server) check() (key string, err error) {
	if !serverName.MatchString(s.Name) {
		return "name", fmt.Errorf("%q cannot name an MCP server: use a-z, 0-9 and -, at most 64", s.Name)
	}
	if (s.URL == "") == (s.Command == "") {
		return "url", errors.New("an MCP server needs either a url or a command")
	}
	if key, err := s.checkTools(); err != nil {
		return key, err
	}
	if s.Command != "" {
		return s.checkProgram()
	}
	for key, set := range map[string]bool{
		"args": len(s.Args) > 0, "env": len(s.Env) > 0, "secret_env": len(s.SecretEnv) > 0, "dir": s.Dir != "",
	} {
		if set {
			return key, fmt.Errorf("%s is for a server with a command", key)
		}
	}
	u, err := url.Parse(s.URL)
	if err == nil {
		err = checkURL(u, s.Loopback)
	}
	if err == nil && u.Fragment != "" {
		err = errors.New("a url has no fragment")
	}
	if err != nil {
		return "url", err
	}
	if s.Credential != nil {
		if s.OAuth != nil {
			return "oauth", errors.New("a server has either a credential or oauth")
		}
		return "credential", s.Credential.Check()
	}
	if s.OAuth != nil && s.OAuth.ClientSecret != nil {
		if s.OAuth.ClientID == "" {
			return "oauth", errors.New("a client_secret needs a client_id")
		}
		return "oauth", s.OAuth.ClientSecret.Check()
	}
	return "", nil
}

func (s Server) checkTools() (string, error) {
	seen := make(map[string]bool)
	for _, t := range s.Tools {
		if t == "" || seen[t] {
			return "tools", fmt.Errorf("the tool %q is empty or here twice", t)
		}
		seen[t] = true
	}
	for tool, p := range s.Policy {
		switch p {
		case PolicyAsk, PolicyAllow, PolicyDeny:
		default:
			return "policy", fmt.Errorf("unknown policy %q for %s: use ask, allow or deny", p, tool)
		}
	}
	return "", nil
}

func (s Server) checkProgram() (string, error) {
	switch {
	case s.Credential != nil:
		return "credential", errors.New("a server with a command gets credentials through secret_env")
	case s.OAuth != nil:
		return "oauth", errors.New("oauth is for a server with a url")
	case s.Loopback:
		return "loopback", errors.New("loopback is for a server with a url")
	}
	for name := range s.Env {
		if !variable.MatchString(name) {
			return "env", fmt.Errorf("%q is not the name of a variable", name)
		}
	}
	for name, ref := range s.SecretEnv {
		if _, twice := s.Env[name]; twice {
			return "secret_env", fmt.Errorf("%s is in env too", name)
		}
		if !variable.MatchString(name) {
			return "secret_env", fmt.Errorf("%q is not the name of a variable", name)
		}
		if err := ref.Check(); err != nil {
			return "secret_env", fmt.Errorf("%s: %w", name, err)
		}
	}
	return "", nil
}

// checkURL refuses an address that a key must not be sent to: anything but
// https, unless it is on this machine and loopback says that this is wanted.
func checkURL(u *url.URL, loopback bool) error {
	switch {
	case u.Hostname() == "" || u.Opaque != "":
		return fmt.Errorf("%q is not an address such as https://example.com/v1", u.Redacted())
	case u.User != nil:
		return errors.New("an address must not hold a user or password: use a credential")
	case IsLoopback(u.Hostname()):
		if !loopback {
			return fmt.Errorf("%s is on this machine: set loopback: true if that is meant", u.Host)
		}
		if u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("%q is neither http nor https", u.Scheme)
		}
	case u.Scheme != "https":
		return fmt.Errorf("%s must be reached with https; http is for this machine only", u.Host)
	}
	return nil
}

// IsLoopback tells whether a host name is of this machine.
func IsLoopback(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && (ip.Unmap().IsLoopback() || ip.Unmap().IsUnspecified())
}
