// Package enginetest says whether an engine behaves as package engine promises, with a real guest in it.
package enginetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"msb/vmm/engine"
)

// Subject is an engine to be tested.
type Subject struct {
	// New makes the engine.
	New func() engine.Engine
	// Spec is a machine whose guest is the test guest (BuildTestInit), without a disk, one port.
	Spec engine.Spec
}

// bootTime bounds one boot of the test guest, however slow the host.
const bootTime = 60 * time.Second

// Run runs the suite. The tests boot a machine each and check afterwards that nothing of it is left.
func Run(t *testing.T, s Subject) {
	if err := s.New().Check(t.Context()); err != nil {
		Missing(t, "the engine cannot run here", err)
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, Subject)
	}{
		{"a guest answers and powers off", answers},
		{"two ports carry bytes both ways", carries},
		{"data on the disk survives a power off", survives},
		{"a killed machine is gone and says so", killed},
		{"a reset ends the machine and is no power off", reset},
		{"an init that fails is no power off", panics},
		{"a paused guest waits", pauses},
		{"a cancelled start leaves nothing", cancelled},
		{"a spec that cannot work is refused", refuses},
		{"disks are thin, private and never overwritten", disks},
		{"a machine dies with its parent", orphaned},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := takeCensus(t)
			t.Cleanup(func() { before.check(t) }) // the last of the cleanups
			c.test(t, s)
		})
	}
}

// start boots a machine and kills it at the end of the test, if it is still there.
func start(t *testing.T, s Subject, change ...func(*engine.Spec)) engine.VM {
	t.Helper()
	spec := s.Spec
	spec.Dir = t.TempDir()
	spec.KernelLog = filepath.Join(spec.Dir, "kernel.log")
	for _, f := range change {
		f(&spec)
	}
	vm, err := s.New().Start(t.Context(), spec)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		vm.Kill()
		<-vm.Done()
		if t.Failed() {
			log, _ := os.ReadFile(spec.KernelLog)
			t.Logf("exit: %+v; console:\n%s", vm.Exit(), log)
		}
	})
	return vm
}

func talk(t *testing.T, port io.ReadWriteCloser) *Talk {
	t.Helper()
	k := NewTalk(t, port).Within(bootTime)
	if got := k.Ask("ping %s", t.Name()); !strings.HasPrefix(got, "pong") {
		t.Fatalf("ping: got %q", got)
	}
	return k
}

func ended(t *testing.T, vm engine.VM) engine.Exit {
	t.Helper()
	select {
	case <-vm.Done():
		return vm.Exit()
	case <-time.After(30 * time.Second):
		t.Fatal("the machine did not end")
		return engine.Exit{}
	}
}

func answers(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	spec := s.Spec
	spec.KernelLog = filepath.Join(t.TempDir(), "kernel.log")
	vm, err := s.New().Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // bounds the start only
	k := talk(t, vm.Control())
	if vm.Bulk() != nil {
		t.Error("there is a bulk port that nobody asked for")
	}
	if vm.Device() != "" {
		t.Errorf("device %q without a disk", vm.Device())
	}
	if vm.PID() <= 1 || !alive(vm.PID()) {
		t.Errorf("pid %d is no process", vm.PID())
	}
	if got := k.Ask("pid"); got != "1" {
		t.Errorf("the guest is process %s, not 1", got)
	}
	k.Say("poweroff")
	exit := ended(t, vm)
	if !exit.PoweredOff || exit.Err != nil {
		t.Errorf("exit %+v after a power off", exit)
	}
	if err := k.Ended(); err != nil {
		t.Errorf("the port of a machine that is gone: %v", err)
	}
	if alive(vm.PID()) {
		t.Errorf("process %d is still there", vm.PID())
	}
	for range vm.Events() { // is closed
	}
	if err := vm.Kill(); err != nil {
		t.Errorf("kill after the end: %v", err)
	}
	if log, err := os.ReadFile(spec.KernelLog); err != nil || !bytes.Contains(log, []byte("testinit: up")) {
		t.Errorf("console log (%v):\n%s", err, log)
	}
}

func carries(t *testing.T, s Subject) {
	vm := start(t, s, func(s *engine.Spec) { s.DualPort = true })
	ports := map[string]*Talk{"agent": talk(t, vm.Control()), "agent-bulk": talk(t, vm.Bulk())}
	data := make([]byte, 1<<20+13)
	rand.Read(data)
	for name, k := range ports {
		k.Say("echo %d", len(data))
		sent := make(chan error, 1)
		go func() {
			_, err := k.port.Write(data)
			sent <- err
		}()
		got := make([]byte, len(data))
		k.Read(got)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, data) {
			t.Errorf("port %s does not give back what was sent", name)
		}
	}
	vm.Kill()
	ended(t, vm)
}

func survives(t *testing.T, s Subject) {
	const size = 64 << 20
	base := Base(t, "a base image", 8<<20)
	disk := filepath.Join(t.TempDir(), "disk")
	if err := s.New().CreateDisk(t.Context(), base, disk, size); err != nil {
		t.Fatal(err)
	}
	withDisk := func(s *engine.Spec) { s.Disk = disk }
	want := sha256.Sum256(bytes.Repeat([]byte("x"), 4096))

	vm := start(t, s, withDisk)
	if vm.Device() == "" {
		t.Error("a machine with a disk names no device")
	}
	k := talk(t, vm.Control())
	if got := k.Ask("disk"); got != fmt.Sprint(size) {
		t.Errorf("the disk in the guest has %s bytes, want %d", got, size)
	}
	head := sha256.Sum256([]byte("a base image"))
	if got := k.Ask("sum 0 12"); got != hex.EncodeToString(head[:]) {
		t.Errorf("the disk does not begin as its base: %s", got)
	}
	if got := k.Ask("write %d 4096", size-4096); got != "ok" {
		t.Fatalf("write: %s", got)
	}
	k.Say("poweroff")
	if exit := ended(t, vm); !exit.PoweredOff {
		t.Fatalf("exit %+v", exit)
	}

	vm = start(t, s, withDisk) // at once: the first one has let go of the disk
	k = talk(t, vm.Control())
	if got := k.Ask("sum %d 4096", size-4096); got != hex.EncodeToString(want[:]) {
		t.Errorf("what was written is gone: %s", got)
	}
	k.Say("poweroff")
	ended(t, vm)
}

func killed(t *testing.T, s Subject) {
	vm := start(t, s, func(s *engine.Spec) { s.DualPort = true })
	k := talk(t, vm.Control())
	k.Say("hang")
	NewTalk(t, vm.Bulk())
	if err := vm.Kill(); err != nil {
		t.Fatal(err)
	}
	if exit := ended(t, vm); exit.PoweredOff || exit.Err == nil {
		t.Errorf("exit %+v after a kill", exit)
	}
	if err := k.Ended(); err != nil {
		t.Errorf("port: %v", err)
	}
}

func reset(t *testing.T, s Subject) {
	vm := start(t, s)
	talk(t, vm.Control()).Say("reset")
	if exit := ended(t, vm); exit.PoweredOff || exit.Err == nil {
		t.Errorf("exit %+v after a reset", exit)
	}
}

func panics(t *testing.T, s Subject) {
	vm := start(t, s)
	talk(t, vm.Control()).Say("panic")
	exit := ended(t, vm)
	if exit.PoweredOff || exit.Err == nil {
		t.Errorf("exit %+v after init died", exit)
	}
	t.Logf("says: %v", exit.Err)
}

func pauses(t *testing.T, s Subject) {
	vm := start(t, s)
	k := talk(t, vm.Control())
	ctx, cancel := context.WithTimeout(t.Context(), bootTime)
	defer cancel()
	err := vm.Pause(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("skipped, since this host cannot pause such a machine: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := vm.Pause(ctx); err != nil {
		t.Errorf("pause a second time: %v", err)
	}
	k.Say("ping paused")
	k.Within(200 * time.Millisecond)
	if line, err := k.in.ReadString('\n'); err == nil {
		t.Errorf("a paused guest said %q", line)
	}
	k.Within(bootTime)
	if err := vm.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if line, err := k.in.ReadString('\n'); err != nil || line != "pong paused\n" {
		t.Errorf("after resume: %q, %v", line, err)
	}
	if err := vm.Resume(ctx); err != nil {
		t.Errorf("resume a second time: %v", err)
	}
	// A paused machine can be killed.
	if err := vm.Pause(ctx); err != nil {
		t.Error(err)
	}
	vm.Kill()
	ended(t, vm)
	kinds := map[engine.EventKind]int{}
	for e := range vm.Events() {
		kinds[e.Kind]++
	}
	if kinds[engine.EventPaused] == 0 || kinds[engine.EventResumed] == 0 {
		t.Errorf("events %v tell of no pause", kinds)
	}
}

func cancelled(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if vm, err := s.New().Start(ctx, s.Spec); err == nil {
		vm.Kill()
		<-vm.Done()
		vm.Control().Close()
		t.Error("started with a context that is over")
	}
}

func refuses(t *testing.T, s Subject) {
	for name, change := range map[string]func(*engine.Spec){
		"no CPU":              func(s *engine.Spec) { s.CPUs = 0 },
		"CPUs over maximum":   func(s *engine.Spec) { s.CPUs, s.MaxCPUs = 4, 2 },
		"memory over maximum": func(s *engine.Spec) { s.MemoryMiB, s.MaxMemoryMiB = 512, 256 },
		"accelerator":         func(s *engine.Spec) { s.Accel = "warp" },
		"disk format":         func(s *engine.Spec) { s.DiskFormat = "vmdk" },
		"no such disk":        func(s *engine.Spec) { s.Disk = filepath.Join(t.TempDir(), "none") },
		"relative disk":       func(s *engine.Spec) { s.Disk = "disk" },
		"words with blanks":   func(s *engine.Spec) { s.Cmdline = []string{"a b"} },
		"log in no directory": func(s *engine.Spec) { s.KernelLog = filepath.Join(t.TempDir(), "no", "log") },
	} {
		spec := s.Spec
		change(&spec)
		vm, err := s.New().Start(t.Context(), spec)
		if err == nil {
			vm.Kill()
			<-vm.Done()
			vm.Control().Close()
			t.Errorf("%s: started", name)
		}
	}
}
