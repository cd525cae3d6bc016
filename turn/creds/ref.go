package creds

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Sources of a credential.
const (
	SourceEnv     = "env"     // a variable of the environment of msb
	SourceKeyring = "keyring" // an entry of the user's keyring
	SourceFile    = "file"    // a file of mode 0600
	SourceCommand = "command" // what a command prints
	SourceSandbox = "sandbox" // a secret of the sandbox, for the hosts that may get it
)

// Ref says where a credential is. It holds nothing secret.
type Ref struct {
	Source string `yaml:"source,omitempty" json:"source"`
	// Name is the variable, the entry of the keyring, the sandbox's secret or the
	// file. A file name
	// without a slash is in the store's folder, where `msb creds set` puts it;
	// "~/" is the home directory.
	Name string `yaml:"name,omitempty" json:"name,omitempty"`
	// Command is the program and its arguments; no shell is involved.
	Command []string `yaml:"command,omitempty" json:"command,omitempty"`

	host string // see For
}

// For is the reference for requests to a host, a name or an address without a
// port. Secrets of a sandbox are given out for no other.
func (r Ref) For(host string) Ref {
	r.host = host
	return r
}

var (
	variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	entry    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
)

// CheckName refuses what cannot be the name of a stored credential.
func CheckName(name string) error {
	if !entry.MatchString(name) {
		return fmt.Errorf("%q cannot name a credential: use 1 to 100 letters, digits, dots, dashes and underscores, a letter or digit first", name)
	}
	return nil
}

// Check refuses a reference that cannot work.
func (r Ref) Check() error {
	if r.Source != SourceCommand && len(r.Command) > 0 {
		return fmt.Errorf("a credential from %q has no command", r.Source)
	}
	switch r.Source {
	case SourceEnv, SourceSandbox:
		if !variable.MatchString(r.Name) {
			return fmt.Errorf("%q is not the name of a variable or a secret", r.Name)
		}
	case SourceKeyring:
		return CheckName(r.Name)
	case SourceFile:
		if r.Name == "" {
			return errors.New("a credential from a file needs the file's name")
		}
		if !strings.Contains(r.Name, "/") {
			return CheckName(r.Name)
		}
		if !strings.HasPrefix(r.Name, "/") && !strings.HasPrefix(r.Name, "~/") {
			return fmt.Errorf("%q is neither an absolute path nor one below ~/", r.Name)
		}
	case SourceCommand:
		if r.Name != "" {
			return errors.New("a credential from a command has no name")
		}
		if len(r.Command) == 0 || r.Command[0] == "" {
			return errors.New("a credential from a command needs the command, as a list of words")
		}
	case "":
		return errors.New("a credential needs a source: env, keyring, file, command or sandbox")
	default:
		return fmt.Errorf("unknown source %q: use env, keyring, file, command or sandbox", r.Source)
	}
	return nil
}

// String names the place, e.g. "keyring openai". It is for the user of the
// host; a guest must not see it.
func (r Ref) String() string {
	if r.Source == SourceCommand {
		return "command " + r.Command[0]
	}
	return r.Source + " " + r.Name
}
