package fusefs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// soak tells whether the long runs are wanted.
func soak() bool { return os.Getenv("MSB_SOAK") != "" }

// program runs one of the programs that torture file systems in the mount.
func (s *sandbox) program(limit time.Duration, name string, args ...string) (string, error) {
	s.t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		s.t.Skipf("%s is missing: apt-get install %s", name, name)
	}
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.dir
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("did not end in %v: %w", limit, err)
	}
	return string(out), err
}

// fio writes patterns with checksums and reads them again.
func TestFio(t *testing.T) {
	s := newSandbox(t, nil)
	size, loops := "6m", "1"
	if soak() {
		size, loops = "256m", "4"
	}
	for name, args := range map[string][]string{
		"sequential":  {"--rw=write", "--bs=128k", "--ioengine=psync"},
		"random":      {"--rw=randwrite", "--bs=1k-64k", "--bs_unaligned=1", "--ioengine=psync"},
		"both":        {"--rw=randrw", "--bs=4k", "--ioengine=psync", "--fsync=64"},
		"mapped":      {"--rw=randwrite", "--bs=4k", "--ioengine=mmap", "--fsync=256"},
		"direct":      {"--rw=randwrite", "--bs=4k-128k", "--direct=1", "--ioengine=psync"},
		"many":        {"--rw=randwrite", "--bs=4k-32k", "--ioengine=psync", "--numjobs=4", "--thread", "--group_reporting"},
		"appended":    {"--rw=write", "--bs=4k", "--file_append=1", "--ioengine=psync", "--end_fsync=1"},
		"deep queues": {"--rw=randwrite", "--bs=16k", "--ioengine=libaio", "--iodepth=32", "--direct=1"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			out, err := sub.program(30*time.Minute, "fio", append([]string{
				"--name=" + strings.ReplaceAll(name, " ", "-"), "--directory=" + s.dir, "--size=" + size, "--loops=" + loops,
				"--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_state_save=0", "--unlink=1",
			}, args...)...)
			if err != nil && strings.Contains(out, "engine "+"libaio not loadable") {
				t.Skip(out)
			}
			if err != nil || strings.Contains(out, "verify:") && strings.Contains(out, "bad") {
				t.Errorf("%v\n%.4000s", err, out)
			}
		})
	}
}

// stressors are those of stress-ng's that work on a file system and look at what
// comes of it; longStressors do not end when they are told to.
var (
	stressors = []string{
		"access", "chdir", "chmod", "chown", "dentry", "fallocate", "fcntl", "fiemap", "file-ioctl", "flock", "fstat", "getdent",
		"hdd", "io", "lease", "locka", "lockf", "lockofd", "mknod", "open", "readahead", "rename", "seek", "sync-file", "touch",
		"utime", "xattr",
	}
	longStressors = []string{"copy-file", "dir", "dirdeep", "filename", "fpunch", "iomix", "link", "symlink", "unlink"}
)

func TestStressNG(t *testing.T) {
	s := newSandbox(t, nil)
	seconds, all := "1s", stressors
	if soak() {
		seconds, all = "60s", append(stressors, longStressors...)
	}
	for _, name := range all {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			args := []string{"--temp-path", s.dir, "--timeout", seconds, "--verify", "--" + name, "1"}
			switch name {
			case "hdd", "iomix", "fallocate", "readahead":
				args = append(args, "--"+name+"-bytes", "8m")
			case "seek":
				args = append(args, "--seek-size", "8m")
			}
			out, err := sub.program(10*time.Minute, "stress-ng", args...)
			var exit *exec.ExitError
			switch {
			case strings.Contains(out, "unrecognized option"):
				t.Skip("this stress-ng does not have it")
			case errors.As(err, &exit) && (exit.ExitCode() == 3 || exit.ExitCode() == 4):
				t.Skipf("not on this machine: %.500s", out)
			case err != nil, strings.Contains(out, "fail:"):
				t.Errorf("%v\n%.4000s", err, out)
			}
		})
	}
}
