package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Source is where a value is read from, at the start of the runtime and at no
// other time. At most one field is set; none means that the value was given
// once and has to be given again after a restart.
type Source struct {
	Env     string   `json:"env,omitempty"`     // a variable of who starts the sandbox
	File    string   `json:"file,omitempty"`    // an absolute path
	Command []string `json:"command,omitempty"` // prints it
}

// MaxValue bounds a value, in bytes.
const MaxValue = 1 << 20

// commandTimeout is how long the command of a source may take.
const commandTimeout = 30 * time.Second

// IsZero tells whether there is no source.
func (s Source) IsZero() bool { return s.Env == "" && s.File == "" && len(s.Command) == 0 }

// String names the source as `msb modify --secret-from` takes it.
func (s Source) String() string {
	switch {
	case s.Env != "":
		return "env:" + s.Env
	case s.File != "":
		return "file:" + s.File
	case len(s.Command) > 0:
		return "command:" + s.Command[len(s.Command)-1]
	}
	return "given once"
}

// Read reads the value. One line end at the end is not part of it. Errors never
// hold what was read.
func (s Source) Read(ctx context.Context) (string, error) {
	switch {
	case s.Env != "":
		v, ok := os.LookupEnv(s.Env)
		if !ok {
			return "", fmt.Errorf("the environment has no variable %s", s.Env)
		}
		return checkValue([]byte(v))
	case s.File != "":
		if !filepath.IsAbs(s.File) {
			return "", fmt.Errorf("file %s: not an absolute path", s.File)
		}
		f, err := os.Open(s.File)
		if err != nil {
			return "", err
		}
		defer f.Close()
		return ReadValue(f)
	case len(s.Command) > 0:
		return s.run(ctx)
	}
	return "", ErrNoValue
}

func (s Source) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var out capped
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	cmd.Stdout = &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("command %q: %w", s.Command[0], err)
	}
	return checkValue(out.b)
}

// ReadValue reads a value that is given on a stream, up to its end.
func ReadValue(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxValue+3))
	if err != nil {
		return "", err
	}
	return checkValue(b)
}

func checkValue(b []byte) (string, error) {
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	switch {
	case len(b) == 0:
		return "", errors.New("the value is empty")
	case len(b) > MaxValue:
		return "", fmt.Errorf("the value is longer than %d bytes", MaxValue)
	}
	return string(b), nil
}

// capped keeps what a command prints, a little more than a value may have.
type capped struct{ b []byte }

func (c *capped) Write(p []byte) (int, error) {
	if room := MaxValue + 3 - len(c.b); room > 0 {
		c.b = append(c.b, p[:min(len(p), room)]...)
	}
	return len(p), nil
}
