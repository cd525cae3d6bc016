package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// box is one sandbox of a home of its own, driven as a user would.
type box struct {
	t    *testing.T
	home string
	name string
}

func newBox(t *testing.T, engine string, flags ...string) *box {
	t.Helper()
	home, err := newHome(true)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, home: home, name: "ctl"}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(home, "sandboxes", b.name, "logs", "runtime.log"))
			t.Logf("runtime.log:\n%s", log[max(0, len(log)-8<<10):])
		}
		if err := cleanHome(home); err != nil {
			t.Error(err)
		}
	})
	b.msb(append([]string{"create", "tiny", "-q", "-n", b.name, "--engine", engine}, flags...)...)
	return b
}

func (b *box) cmd(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.t.Context(), filepath.Join(suite.bin, "msb"), args...)
	cmd.Env = testEnv(b.home)
	return cmd
}

func (b *box) msb(args ...string) string {
	b.t.Helper()
	out, err := b.try(args...)
	if err != nil {
		b.t.Fatalf("msb %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (b *box) try(args ...string) (string, error) {
	out, err := b.cmd(args...).CombinedOutput()
	return string(out), err
}

func (b *box) inspect(v any) {
	b.t.Helper()
	out, err := b.cmd("inspect", b.name, "--live", "--json").Output()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := json.Unmarshal(out, v); err != nil {
		b.t.Fatal(err)
	}
}

// guest is what the guest itself says: CPUs and MiB of memory.
func (b *box) guest() (cpus, memory int) {
	b.t.Helper()
	out := b.msb("exec", b.name, "--", "sh", "-c", "nproc; grep MemTotal /proc/meminfo")
	var kb int
	if _, err := fmt.Sscanf(out, "%d\nMemTotal: %d kB", &cpus, &kb); err != nil {
		b.t.Fatalf("%v: %q", err, out)
	}
	return cpus, kb >> 10
}

// TestModify looks into the guest after each change.
func TestModify(t *testing.T) {
	needVM(t)
	b := newBox(t, "qemu", "-m", "256M", "--max-memory", "1G", "-c", "1", "--max-cpus", "3")
	cpus, small := b.guest()
	if cpus != 1 || small > 256 {
		t.Fatalf("at first %d CPUs and %d MiB", cpus, small)
	}
	for _, tt := range []struct {
		cpus, memory string
		wantCPUs     int
		grown        int // MiB
	}{
		{"3", "768M", 3, 512},
		{"2", "512M", 2, 256},
		{"1", "256M", 1, 0},
		{"3", "1G", 3, 768},
	} {
		b.msb("modify", b.name, "-c", tt.cpus, "-m", tt.memory, "--timeout", "5m")
		cpus, memory := b.guest()
		if cpus != tt.wantCPUs || memory-small < tt.grown-16 || memory-small > tt.grown+16 {
			t.Errorf("-c %s -m %s: the guest has %d CPUs, %d MiB more than at first", tt.cpus, tt.memory, cpus, memory-small)
		}
		var v struct {
			CPUs      int `json:"cpus"`
			MemoryMiB int `json:"memory_mib"`
			EnginePID int `json:"engine_pid"`
			Live      liveView
		}
		b.inspect(&v)
		if v.CPUs != tt.wantCPUs || v.MemoryMiB != tt.grown+256 || v.Live.Memory.CurrentMiB != uint64(tt.grown+256) || v.Live.Memory.BootMiB != 256 ||
			v.Live.CPU.ActualOnline != uint32(tt.wantCPUs) || v.Live.CPU.Enforced != uint32(tt.wantCPUs) || v.Live.Protocol != "framed" {
			t.Errorf("inspect: %+v, memory %+v, cpu %+v", v, v.Live.Memory, v.Live.CPU)
		}
		hostBounds(t, v.EnginePID, tt.wantCPUs, 3)
	}

	// Memory that was plugged in is movable, and counts for file systems on memory.
	zones := b.msb("exec", b.name, "--", "sh", "-c", "cd /sys/devices/system/memory; for m in memory*; do echo $(cat $m/state $m/valid_zones); done")
	if !strings.Contains(zones, "online Movable") || strings.Contains(strings.Replace(zones, "offline", "", 1), "offline") {
		t.Errorf("memory blocks:\n%s", zones)
	}
	shared := func() (mib int) {
		fmt.Sscan(b.msb("exec", b.name, "--", "sh", "-c", "df -m /dev/shm | awk 'END { print $2 }'"), &mib)
		return mib
	}
	for end := time.Now().Add(time.Minute); shared() < 440; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("/dev/shm has %d MiB", shared())
		}
	}

	// Below what the guest uses: accepted, told as it is, and nothing is killed.
	hog := b.cmd("exec", b.name, "-u", "root", "--", "sh", "-c",
		"mkdir /hog && mount -t tmpfs -o size=400m hog /hog && dd if=/dev/zero of=/hog/x bs=1M count=300 2>/dev/null; echo full; read x; wc -c </hog/x; umount /hog")
	in, _ := hog.StdinPipe()
	out, _ := hog.StdoutPipe()
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if s, err := r.ReadString('\n'); s != "full\n" {
		t.Fatalf("%q, %v", s, err)
	}
	said, err := b.try("modify", b.name, "-m", "256M", "--timeout", "4s")
	if err != nil || !strings.Contains(said, "target 256 MiB: the guest still uses the rest") {
		t.Errorf("%v: %s", err, said)
	}
	fmt.Fprintln(in)
	if rest, err := io.ReadAll(r); strings.TrimSpace(string(rest)) != strconv.Itoa(300<<20) {
		t.Errorf("the program lost its data: %q, %v", rest, err)
	}
	if err := hog.Wait(); err != nil {
		t.Error(err)
	}
	// What it gave up is taken, and the host has it back.
	b.msb("modify", b.name, "-m", "256M", "--timeout", "5m")
	if _, memory := b.guest(); memory > small+16 {
		t.Errorf("the guest has %d MiB, at first it had %d", memory, small)
	}

	for _, tt := range []struct{ flags, want string }{
		{"-m 2G", "more than the maximum"},
		{"-m 128M", "cannot give back"},
		{"-c 4", "more than the maximum"},
		{"--max-memory 2G", "--next-start"},
		{"-e A=b", "--restart"},
		{"--compact", "cannot compact"},
		{"--root-disk 20G", "keeps its size"},
		{"", "nothing to change"},
		{"--secret KEY=v@a.example", "takes no value"},
		{"--secret KEY@a.example", "no variable KEY"},
		{"--secret-rm KEY", "unknown secret"},
	} {
		if out, err := b.try(append([]string{"modify", b.name}, strings.Fields(tt.flags)...)...); err == nil || !strings.Contains(out, tt.want) {
			t.Errorf("modify %s: %v: %s", tt.flags, err, out)
		}
	}
	b.msb("modify", b.name, "--label", "a=b", "-m", "512M", "-c", "2")
	if out := b.msb("modify", b.name, "-m", "1G", "--dry-run"); !strings.Contains(out, "512M") {
		t.Errorf("dry run: %s", out)
	}
	// Several at once: the config and the runtime are of one mind afterwards.
	var work sync.WaitGroup
	for _, m := range []string{"512M", "640M", "768M", "896M"} {
		work.Go(func() {
			if out, err := b.try("modify", b.name, "-m", m, "--no-wait"); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	work.Wait()
	var v struct {
		MemoryMiB uint64 `json:"memory_mib"`
		Live      liveView
	}
	if b.inspect(&v); v.MemoryMiB != v.Live.Memory.TargetMiB {
		t.Errorf("the config says %d MiB, the runtime %+v", v.MemoryMiB, v.Live.Memory)
	}
	b.msb("modify", b.name, "--max-memory", "2G", "-e", "COLOUR=green", "-m", "384M", "--restart")
	if out := b.msb("exec", b.name, "--", "sh", "-c", "echo $COLOUR"); out != "green\n" {
		t.Errorf("environment %q", out)
	}
	// The memory beyond the boot's is plugged when the guest runs already.
	cpus, memory := b.guest()
	for end := time.Now().Add(time.Minute); memory < 256 && time.Now().Before(end); cpus, memory = b.guest() {
		time.Sleep(50 * time.Millisecond)
	}
	if cpus != 2 || memory < 256 || memory > 384 {
		t.Errorf("after the restart %d CPUs and %d MiB", cpus, memory)
	}
	if out := b.msb("metrics", b.name); !strings.Contains(out, "of 384 MiB") || !strings.Contains(out, "of 2") {
		t.Errorf("metrics: %s", out)
	}
}

// TestPause pauses a sandbox with a command running and its client connected.
func TestPause(t *testing.T) {
	needVM(t)
	b := newBox(t, "qemu", "-m", "256M")
	run := b.cmd("exec", b.name, "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")
	out, _ := run.StdoutPipe()
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer run.Process.Kill()
	lines := make(chan int, 10_000)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			n, _ := strconv.Atoi(s.Text())
			lines <- n
		}
		close(lines)
	}()
	last := <-lines
	follow := func(n int) {
		if n != last+1 {
			t.Errorf("%d follows %d", n, last)
		}
		last = n
	}
	for range 3 {
		b.msb("pause", b.name, "-q")
		b.msb("pause", b.name, "-q") // again: no harm
		for quiet := false; !quiet; {
			select {
			case n := <-lines:
				follow(n)
			case <-time.After(500 * time.Millisecond):
				quiet = true
			}
		}
		if out, err := b.try("exec", b.name, "--", "true"); err == nil || !strings.Contains(out, "msb resume") {
			t.Errorf("a command in a paused sandbox: %v: %s", err, out)
		}
		if out := b.msb("ls"); !strings.Contains(out, "paused") {
			t.Errorf("ls: %s", out)
		}
		if out := b.msb("metrics", b.name); !strings.Contains(out, "paused") {
			t.Errorf("metrics: %s", out)
		}
		b.msb("resume", b.name, "-q")
		for range 5 {
			select {
			case n := <-lines:
				follow(n)
			case <-time.After(time.Minute):
				t.Fatal("the command does not go on")
			}
		}
		for end := time.Now().Add(time.Minute); ; { // the clock follows the resume
			before := time.Now().Unix()
			said := b.msb("exec", b.name, "--", "date", "+%s")
			guest, err := strconv.ParseInt(strings.TrimSpace(said), 10, 64)
			if err == nil && guest >= before-3 && guest <= time.Now().Unix()+3 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the guest's clock says %q, %v", said, err)
			}
		}
	}
	// A paused sandbox can be stopped, and its end is clean.
	b.msb("exec", b.name, "--", "sh", "-c", "echo kept >/home/dev/kept")
	b.msb("pause", b.name, "-q")
	b.msb("stop", b.name)
	b.msb("start", "-q", b.name)
	if out := b.msb("exec", b.name, "--", "cat", "/home/dev/kept"); out != "kept\n" {
		t.Errorf("got %q", out)
	}
}

// TestProcessEngineHasNoSize: what it cannot do it says.
func TestProcessEngineHasNoSize(t *testing.T) {
	needImages(t)
	if os.Geteuid() != 0 {
		t.Skip("the process engine is for root")
	}
	b := newBox(t, "process")
	var v struct{ Live liveView }
	b.inspect(&v)
	if c := v.Live.Capabilities; c.CPUResize || c.MemoryResize || !c.SecretsUpdate || v.Live.Memory != nil || v.Live.CPU != nil {
		t.Errorf("live: %+v", v.Live)
	}
	for flag, want := range map[string]string{"-m": "no hotplug memory", "-c": "no CPU capacity"} {
		if out, err := b.try("modify", b.name, flag, map[string]string{"-m": "512M", "-c": "1"}[flag]); err == nil || !strings.Contains(out, want) {
			t.Errorf("modify %s: %v: %s", flag, err, out)
		}
	}
	if out := b.msb("metrics", b.name); !strings.Contains(out, "cpu") {
		t.Errorf("metrics: %s", out)
	}
}
