package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// Scripts run the built binary as a user would. Each has a home of its own below one short directory (a socket's path
// must be), with the kernel and the images of MSB_TEST_HOME in it where that is set: make test prepares it.

// suite is what TestMain prepares.
var suite struct {
	root string // of all homes
	bin  string // directory of msb and msb-guest
	home string // with kernel and images; "" when there is none
}

func TestMain(m *testing.M) {
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	if suite.root, err = os.MkdirTemp("/tmp", "msbt-"); err != nil {
		return 1, err
	}
	defer func() {
		if code == 0 && err == nil {
			err = os.RemoveAll(suite.root)
		}
	}()
	suite.bin = filepath.Join(suite.root, "bin")
	suite.home = os.Getenv("MSB_TEST_HOME")
	if err := buildBinaries(); err != nil {
		return 1, err
	}
	code = m.Run()
	if left := leaks(suite.root); len(left) > 0 {
		return 1, fmt.Errorf("left behind by the tests:\n  %s", strings.Join(left, "\n  "))
	}
	return code, nil
}

// buildBinaries takes the binaries of make, or builds them.
func buildBinaries() error {
	if err := os.Mkdir(suite.bin, 0o755); err != nil {
		return err
	}
	for name, from := range map[string]string{"msb": os.Getenv("MSB_BIN"), "msb-guest": os.Getenv("MSB_GUEST")} {
		to := filepath.Join(suite.bin, name)
		if from != "" {
			if err := os.Symlink(from, to); err != nil {
				return err
			}
			continue
		}
		pkg := map[string]string{"msb": "msb/cmd/msb", "msb-guest": "msb/guest/msb-guest"}[name]
		cmd := exec.Command("go", "build", "-o", to, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// newHome makes a home and returns its path. It has the prepared kernel and images when prepared is set.
func newHome(prepared bool) (string, error) {
	home, err := os.MkdirTemp(suite.root, "h")
	if err != nil {
		return "", err
	}
	if prepared && suite.home != "" {
		for _, dir := range []string{"kernels", "images", "cache"} {
			if err := os.Symlink(filepath.Join(suite.home, dir), filepath.Join(home, dir)); err != nil {
				return "", err
			}
		}
	}
	return home, nil
}

// testEnv is the environment of msb in a test: nothing of the person who runs it.
func testEnv(home string) []string {
	return []string{
		"MSB_HOME=" + home, "HOME=" + home, "MSB_GUEST=" + filepath.Join(suite.bin, "msb-guest"),
		"PATH=" + suite.bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"TERM=xterm-256color", "LANG=C.UTF-8", "XDG_RUNTIME_DIR=", DemoPaceEnv + "=0s",
	}
}

// cleanHome removes the sandboxes of a home, whatever state a test left them in.
func cleanHome(home string) error {
	cmd := exec.Command(filepath.Join(suite.bin, "msb"), "ls", "-q")
	cmd.Env = testEnv(home)
	out, err := cmd.Output()
	var failed []error
	for _, name := range strings.Fields(string(out)) {
		cmd := exec.Command(filepath.Join(suite.bin, "msb"), "rm", "-f", name)
		cmd.Env = testEnv(home)
		if out, err := cmd.CombinedOutput(); err != nil {
			failed = append(failed, fmt.Errorf("rm -f %s: %w: %s", name, err, out))
		}
	}
	return errors.Join(append(failed, err)...)
}

func runScripts(t *testing.T, dir, engine string, prepared bool) {
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			home, err := newHome(prepared)
			if err != nil {
				return err
			}
			env.Defer(func() {
				if err := cleanHome(home); err != nil {
					env.T().Log(err)
				}
			})
			for _, kv := range testEnv(home) {
				k, v, _ := strings.Cut(kv, "=")
				env.Setenv(k, v)
			}
			env.Setenv("ENGINE", engine)
			env.Setenv("SHARED", suite.home)
			env.Setenv("MSBEXE", filepath.Join(suite.bin, "msb"))
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Geteuid() == 0, nil
			case "images":
				return suite.home != "", nil
			case "qemu":
				return engine == "qemu", nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"pattern": cmdPattern, "flipbyte": cmdFlipByte},
	})
}

// cmdPattern writes a file of binary data: pattern FILE BYTES.
func cmdPattern(ts *testscript.TestScript, _ bool, args []string) {
	var n int
	if len(args) != 2 {
		ts.Fatalf("usage: pattern FILE BYTES")
	}
	if _, err := fmt.Sscan(args[1], &n); err != nil {
		ts.Fatalf("pattern: %v", err)
	}
	data := make([]byte, n)
	x := uint32(2463534242)
	for i := range data {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		data[i] = byte(x)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o644))
}

// cmdFlipByte changes one byte in the middle of a file: flipbyte FILE.
func cmdFlipByte(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_RDWR, 0)
	ts.Check(err)
	defer f.Close()
	st, err := f.Stat()
	ts.Check(err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, st.Size()/2)
	ts.Check(err)
	b[0]++
	_, err = f.WriteAt(b, st.Size()/2)
	ts.Check(err)
}

// TestCommands runs what needs no sandbox.
func TestCommands(t *testing.T) { runScripts(t, "testdata/script", "none", false) }

// TestQEMU runs what needs a sandbox, in a virtual machine.
func TestQEMU(t *testing.T) {
	needVM(t)
	runScripts(t, "testdata/vm", "qemu", true)
}

// TestProcess runs the same on the process engine.
func TestProcess(t *testing.T) {
	needImages(t)
	if os.Geteuid() != 0 {
		t.Skip("the process engine is for root")
	}
	runScripts(t, "testdata/vm", "process", true)
}

func needVM(t *testing.T) {
	t.Helper()
	needImages(t)
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("qemu-system-x86_64 is missing: make deps")
	}
}

func needImages(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped, since -short is given: boots machines")
	}
	if suite.home == "" {
		t.Skip("no kernel and image to boot: run make test, which sets MSB_TEST_HOME")
	}
}
