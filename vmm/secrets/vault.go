// Package secrets holds the credentials of one sandbox in the memory of its
// runtime, and nowhere else: no file of ours has them, no log, no error, no
// guest. What sends a request to a model or a tool server asks for a value by
// name and host and gets it only for a host that is allowed.
//
// Use takes and returns plain text, so a broker declares the one-method
// interface that it needs and does not import this package:
//
//	interface{ Use(name, host string) (string, error) }
package secrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"msb/protocol/control"
)

// Errors of Use and of changes. None of them says anything about a value.
var (
	ErrUnknown = errors.New("unknown secret")
	ErrHost    = errors.New("this host may not get the secret")
	ErrNoValue = errors.New("the secret has no value: give it with `msb modify NAME --secret`")
	ErrHosts   = errors.New("invalid hosts of a secret")
)

// Vault holds the secrets of one sandbox. Its methods may be called
// concurrently. However it is printed, it shows no value.
type Vault struct {
	declared func() ([]Declaration, error)

	mu   sync.RWMutex
	held map[string]*secret
}

// secret is one credential.
type secret struct {
	hosts []string
	value string // "" = none
}

// Format hides it from every verb.
func (secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, "secret") }

// New returns an empty vault. declared returns what the sandbox's config says
// now; it is asked by Load, and when a value arrives for a secret that the
// vault does not know yet.
func New(declared func() ([]Declaration, error)) *Vault {
	return &Vault{declared: declared, held: map[string]*secret{}}
}

// String hides everything.
func (v *Vault) String() string { return fmt.Sprintf("vault of %d secrets", len(v.Names())) }

// GoString hides everything from %#v.
func (v *Vault) GoString() string { return v.String() }

// Format hides everything from every verb.
func (v *Vault) Format(f fmt.State, _ rune) { fmt.Fprint(f, v.String()) }

// Load reads every declared secret from its source. One whose source fails is
// kept without a value; the error names it and says why.
func (v *Vault) Load(ctx context.Context) error {
	all, err := v.declared()
	if err != nil {
		return err
	}
	var failed []error
	for _, d := range all {
		hosts, err := CheckHosts(d.Hosts)
		if err == nil {
			err = CheckName(d.Name)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("secret %.40q: %w", d.Name, err))
			continue
		}
		value, err := d.From.Read(ctx)
		if err != nil {
			failed = append(failed, fmt.Errorf("secret %s from %s: %w", d.Name, d.From, err))
		}
		v.mu.Lock()
		v.held[d.Name] = &secret{hosts: hosts, value: value}
		v.mu.Unlock()
	}
	return errors.Join(failed...)
}

// Use returns the value of a secret for a request to host, a name or an address
// without a port. Errors wrap ErrUnknown, ErrHost or ErrNoValue. The caller
// asks for each request anew and keeps nothing, so that a rotated value counts
// from the next request on.
func (v *Vault) Use(name, host string) (string, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s := v.held[name]
	if s == nil {
		return "", fmt.Errorf("%w: %.40q", ErrUnknown, name)
	}
	h, ok := normalHost(host)
	if !ok || !allows(s.hosts, h) {
		return "", fmt.Errorf("%w: %s may not go to %.80q, only to %s", ErrHost, name, host, strings.Join(s.hosts, ", "))
	}
	if s.value == "" {
		return "", fmt.Errorf("%w: %s", ErrNoValue, name)
	}
	return s.value, nil
}

// Info is what may be shown of a secret.
type Info struct {
	Name     string   `json:"name"`
	Hosts    []string `json:"hosts"`
	HasValue bool     `json:"has_value"`
}

// List returns what may be shown, sorted by name.
func (v *Vault) List() []Info {
	v.mu.RLock()
	defer v.mu.RUnlock()
	all := make([]Info, 0, len(v.held))
	for name, s := range v.held {
		all = append(all, Info{Name: name, Hosts: slices.Clone(s.hosts), HasValue: s.value != ""})
	}
	slices.SortFunc(all, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Names returns the names of the secrets, sorted.
func (v *Vault) Names() []string {
	all := v.List()
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name
	}
	return names
}

// Redact replaces every value in text that somebody else wrote, such as the
// error of a server that quotes the key it was sent.
func (v *Vault) Redact(text string) string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for name, s := range v.held {
		if s.value != "" {
			text = strings.ReplaceAll(text, s.value, "["+name+"]")
		}
	}
	return text
}

// Apply carries out changes in order, up to the first that fails; those before
// it stay. rotate needs a secret that the vault or the sandbox's config knows.
func (v *Vault) Apply(changes []control.Change) control.SecretsResult {
	for i, c := range changes {
		if err := v.apply(c); err != nil {
			at := uint32(i)
			return control.SecretsResult{Outcome: control.OutcomeFailed, AppliedCount: at, FailedIndex: &at, Error: failure(c.Name, err)}
		}
	}
	return control.SecretsResult{Outcome: control.OutcomeComplete, AppliedCount: uint32(len(changes))}
}

// failure is what a client gets. A change that failed has changed nothing.
func failure(name string, err error) *control.Error {
	e := &control.Error{Code: control.CodeInvalidRequest, Message: err.Error(), Effect: control.EffectNone}
	switch {
	case errors.Is(err, ErrUnknown):
		e.Code, e.Message = control.CodeUnknownSecret, fmt.Sprintf("unknown secret %.40q", name)
	case errors.Is(err, ErrHosts):
		e.Code = control.CodeInvalidSecretHosts
	}
	return e
}

func (v *Vault) apply(c control.Change) error {
	if err := c.Check(); err != nil {
		return err
	}
	switch c.Change {
	case control.ChangeRotate:
		return v.rotate(c.Name, *c.Value)
	case control.ChangeSetAllowedHosts:
		return v.setHosts(c.Name, c.Hosts)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held[c.Name] == nil {
		return ErrUnknown
	}
	delete(v.held, c.Name)
	return nil
}

func (v *Vault) rotate(name, value string) error {
	switch {
	case value == "":
		return errors.New("the value is empty")
	case len(value) > MaxValue:
		return fmt.Errorf("the value is longer than %d bytes", MaxValue)
	}
	if err := v.know(name); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.held[name]
	if s == nil {
		return ErrUnknown
	}
	s.value = value
	return nil
}

func (v *Vault) setHosts(name string, hosts []string) error {
	clean, err := CheckHosts(hosts)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.held[name]
	if s == nil {
		return ErrUnknown
	}
	s.hosts = clean
	return nil
}

// know takes a secret up that has been declared since Load.
func (v *Vault) know(name string) error {
	v.mu.RLock()
	known := v.held[name] != nil
	v.mu.RUnlock()
	if known {
		return nil
	}
	all, err := v.declared()
	if err != nil {
		return ErrUnknown
	}
	i := slices.IndexFunc(all, func(d Declaration) bool { return d.Name == name })
	if i < 0 {
		return ErrUnknown
	}
	hosts, err := CheckHosts(all[i].Hosts)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held[name] == nil {
		v.held[name] = &secret{hosts: hosts}
	}
	return nil
}
