package config

import (
	"net"
	"net/url"
	"strings"
	"time"

	"msb/protocol/turnrpc"
	"msb/turn/creds"
)

// Providers with an address of their own. Any other name is a label for an
// OpenAI-compatible server at BaseURL.
const (
	ProviderOpenAI    = "openai"
	ProviderAnthropic = "anthropic"
	ProviderXAI       = "xai"
	ProviderDemo      = "demo"
)

// Interfaces of a model server.
const (
	APIChat     = "chat"     // OpenAI chat completions
	APIMessages = "messages" // Anthropic messages
)

// Model is a model profile. Sandboxes learn Name, Provider and Model of it and
// nothing else.
type Model struct {
	Name     string `yaml:"name,omitempty"`
	Provider string `yaml:"provider,omitempty"`
	Model    string `yaml:"model,omitempty"`
	BaseURL  string `yaml:"base_url,omitempty"`
	// API is how the server is spoken to: "messages" for anthropic, else "chat".
	API        string     `yaml:"api,omitempty"`
	Credential *creds.Ref `yaml:"credential,omitempty"`
	// Hosts are where requests, and the key, may go, as host or host:port;
	// empty: the host of BaseURL alone.
	Hosts []string `yaml:"hosts,omitempty"`
	// Loopback allows a BaseURL on this machine, also with http.
	Loopback  bool  `yaml:"loopback,omitempty"`
	MaxTokens int64 `yaml:"max_tokens,omitempty"` // of an answer; 0: the server's limit, or DefaultMaxTokens where one is needed
	// ContextWindow is how many tokens the model takes, its answer included; 0:
	// not known.
	ContextWindow int64    `yaml:"context_window,omitempty"`
	Retries       *int     `yaml:"retries,omitempty"` // nil: DefaultRetries
	Price         *Price   `yaml:"price,omitempty"`
	Timeouts      Timeouts `yaml:"timeouts,omitempty"`
}

// DefaultMaxTokens bounds an answer where the server wants a bound.
const DefaultMaxTokens = 8192

// DefaultRetries is how often a request that failed before its first byte is
// repeated, MaxRetries how often it may be.
const (
	DefaultRetries = 3
	MaxRetries     = 10
)

// Price is in money for a million tokens, in whatever currency the user thinks.
type Price struct {
	Input  float64 `yaml:"input,omitempty"`
	Output float64 `yaml:"output,omitempty"`
}

// Cost is the price of what was used.
func (p *Price) Cost(u turnrpc.Usage) float64 {
	if p == nil {
		return 0
	}
	return (float64(u.InputTokens)*p.Input + float64(u.OutputTokens)*p.Output) / 1e6
}

// Timeouts of a request to a model. Zero is the default.
type Timeouts struct {
	Connect   time.Duration `yaml:"connect,omitempty"`    // until the connection stands, TLS included
	FirstByte time.Duration `yaml:"first_byte,omitempty"` // from then until the answer begins
	Idle      time.Duration `yaml:"idle,omitempty"`       // between two bytes of the answer
	Total     time.Duration `yaml:"total,omitempty"`      // of the request, retries included
}

// Default timeouts.
const (
	DefaultConnect   = 20 * time.Second
	DefaultFirstByte = 5 * time.Minute
	DefaultIdle      = 5 * time.Minute
	DefaultTotal     = 30 * time.Minute
)

var baseURLs = map[string]string{
	ProviderOpenAI:    "https://api.openai.com/v1",
	ProviderXAI:       "https://api.x.ai/v1",
	ProviderAnthropic: "https://api.anthropic.com",
}

// Windows of the providers with an address of their own: what all of their
// current models take.
var contextWindows = map[string]int64{
	ProviderOpenAI:    128_000,
	ProviderXAI:       128_000,
	ProviderAnthropic: 200_000,
}

// MinContextWindow is the smallest window that an agent can do anything in.
const MinContextWindow = 4096

// InputTokens is how long a request may be, room for an answer taken off; 0:
// not known.
func (m Model) InputTokens() int64 {
	if m.ContextWindow == 0 {
		return 0
	}
	answer := m.MaxTokens
	if answer == 0 {
		answer = DefaultMaxTokens
	}
	return m.ContextWindow - min(answer, m.ContextWindow/2)
}

// complete fills in what was left out.
func (m *Model) complete() {
	if m.Provider == ProviderDemo {
		if m.Model == "" {
			m.Model = demoModel().Model
		}
		return
	}
	if m.BaseURL == "" {
		m.BaseURL = baseURLs[m.Provider]
	}
	if m.API == "" {
		m.API = APIChat
		if m.Provider == ProviderAnthropic {
			m.API = APIMessages
		}
	}
	if m.ContextWindow == 0 {
		m.ContextWindow = contextWindows[m.Provider]
	}
	if len(m.Hosts) == 0 {
		if u, err := url.Parse(m.BaseURL); err == nil && u.Host != "" {
			m.Hosts = []string{net.JoinHostPort(u.Hostname(), portOf(u))}
		}
	}
	if m.Retries == nil {
		n := DefaultRetries
		m.Retries = &n
	}
	for _, t := range []struct {
		d    *time.Duration
		zero time.Duration
	}{
		{&m.Timeouts.Connect, DefaultConnect}, {&m.Timeouts.FirstByte, DefaultFirstByte},
		{&m.Timeouts.Idle, DefaultIdle}, {&m.Timeouts.Total, DefaultTotal},
	} {
		if *t.d == 0 {
			*t.d = t.zero
		}
	}
}

// Guest is what a sandbox is told of the profile.
func (m Model) Guest() turnrpc.GuestModel {
	return turnrpc.GuestModel{Name: m.Name, Provider: m.Provider, Model: m.Model}
}

// Host is where requests go, without a port; "" if that is not known.
func (m Model) Host() string { return hostOf(m.BaseURL) }

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Scripted tells whether the profile is the built-in script and no model.
func (m Model) Scripted() bool { return m.Provider == ProviderDemo }

// AllowsHost tells whether requests of the profile may go to a URL.
func (m Model) AllowsHost(u *url.URL) bool {
	if checkURL(u, m.Loopback) != nil {
		return false
	}
	for _, h := range m.Hosts {
		if sameHost(h, u) {
			return true
		}
	}
	return false
}

// sameHost compares an allowed host, with or without a port, with a URL's. A
// host without a port is that host at the usual port of https.
func sameHost(allowed string, u *url.URL) bool {
	host, port, err := net.SplitHostPort(allowed)
	if err != nil {
		host, port = strings.Trim(allowed, "[]"), ""
	}
	return strings.EqualFold(host, u.Hostname()) && (port == portOf(u) || port == "" && portOf(u) == "443")
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "http" {
		return "80"
	}
	return "443"
}

func demoModel() Model {
	return Model{Name: Demo, Provider: ProviderDemo, Model: "scripted"}
}
