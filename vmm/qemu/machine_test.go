package qemu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"msb/vmm/engine"
	"msb/vmm/engine/enginetest"
	"msb/vmm/qemu"
)

// boot starts a machine with the test guest and waits for its first answer.
func boot(t *testing.T, s engine.Spec) (engine.VM, *enginetest.Talk) {
	t.Helper()
	if err := makeEngine().Check(t.Context()); err != nil {
		enginetest.Missing(t, "QEMU cannot run here", err)
	}
	s.Name, s.Accel = "test", engine.AccelTCG
	s.Kernel, s.Initrd = enginetest.Kernel(t, enginetest.BuildTestInit(t))
	vm, err := makeEngine().Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Kill(); <-vm.Done() })
	k := enginetest.NewTalk(t, vm.Control()).Within(2 * time.Minute)
	k.Ask("ping")
	return vm, k
}

func TestResize(t *testing.T) {
	vm, k := boot(t, engine.Spec{CPUs: 1, MaxCPUs: 3, MemoryMiB: 384, MaxMemoryMiB: 1024})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := vm.(engine.Resizer)
	reach := func(memory int) engine.Size {
		t.Helper()
		for {
			size, err := r.Size(ctx)
			if err != nil {
				t.Fatalf("waiting for %d MiB: %v", memory, err)
			}
			if size.MemoryMiB == memory {
				return size
			}
			select {
			case <-ctx.Done():
				t.Fatalf("waiting for %d MiB: %+v", memory, size)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	if size := reach(384); size.CPUs != 1 || size.MaxCPUs != 3 || size.RequestedMiB != 384 || size.MaxMemoryMiB != 1024 {
		t.Errorf("at first: %+v", size)
	}
	if got := k.Ask("online"); got != "0" {
		t.Errorf("CPUs online: %s", got)
	}
	if err := r.Resize(ctx, 3, 1024); err != nil {
		t.Fatal(err)
	}
	if size := reach(1024); size.CPUs != 3 {
		t.Errorf("grown: %+v", size)
	}
	for got := ""; got != "0-2"; got = k.Ask("online") { // the guest brings them up in its own time
		if ctx.Err() != nil {
			t.Fatalf("CPUs online: %s", got)
		}
	}
	if kib, _ := strconv.Atoi(k.Ask("memory")); kib < 900<<10 {
		t.Errorf("the guest has %d KiB of memory", kib)
	}
	if err := r.Resize(ctx, 0, 512); err != nil {
		t.Fatal(err)
	}
	reach(512)
	for name, want := range map[string][2]int{
		"more CPUs than the maximum": {4, 0}, "fewer CPUs": {1, 0}, "more memory than the maximum": {0, 1026}, "less than boot memory": {0, 128},
	} {
		if err := r.Resize(ctx, want[0], want[1]); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if size := reach(512); size.CPUs != 3 {
		t.Errorf("after refusals: %+v", size)
	}
}

// A full host disk is an I/O error in the guest and an event here, and the machine goes on.
func TestFullHostDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped, since it mounts a small file system and is not run as root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("skipped, since it cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	disk := filepath.Join(dir, "disk")
	if err := makeEngine().CreateDisk(t.Context(), enginetest.Base(t, "base", 64<<20), disk, 0); err != nil {
		t.Fatal(err)
	}
	vm, k := boot(t, engine.Spec{CPUs: 1, MemoryMiB: 192, Disk: disk})
	if got := k.Ask("write 0 %d", 16<<20); got == "ok" {
		t.Error("16 MiB went to a disk of 4 MiB")
	} else {
		t.Logf("the guest saw: %s", got)
	}
	select {
	case e := <-vm.Events():
		for e.Kind == engine.EventResumed {
			e = <-vm.Events()
		}
		if e.Kind != engine.EventDiskError || !e.NoSpace || !strings.Contains(e.Text, "full") {
			t.Errorf("event %+v", e)
		}
	case <-time.After(time.Minute):
		t.Error("no event")
	}
	k.Say("poweroff")
	<-vm.Done()
	if exit := vm.Exit(); !exit.PoweredOff {
		t.Errorf("exit %+v", exit)
	}
}

// Whether KVM works depends on the host, but the answer must be bounded, have a reason, and be remembered.
func TestProbe(t *testing.T) {
	e := qemu.New()
	if err := e.Check(t.Context()); err != nil {
		enginetest.Missing(t, "QEMU cannot run here", err)
	}
	kernel, initrd := enginetest.Kernel(t, enginetest.BuildTestInit(t))
	cache := t.TempDir()
	began := time.Now()
	first, err := e.Probe(t.Context(), kernel, initrd, cache)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v after %v: %s", first.Works, time.Since(began), first.Reason)
	if first.Reason == "" || first.Cached || time.Since(began) > qemu.ProbeTime+time.Minute {
		t.Errorf("%+v after %v", first, time.Since(began))
	}
	entries, _ := os.ReadDir(cache)
	if len(entries) == 0 {
		t.Skip("the rest is skipped, since there is no usable /dev/kvm to be remembered")
	}
	second, err := e.Probe(t.Context(), kernel, initrd, cache)
	if err != nil || !second.Cached || second.Works != first.Works || second.Reason != first.Reason {
		t.Errorf("second: %+v, %v", second, err)
	}

	// An answer that says no is not believed for ever, and neither is a file with something else in it.
	path := filepath.Join(cache, entries[0].Name())
	old, _ := json.Marshal(qemu.Probed{Reason: "busy", Time: time.Now().Add(-48 * time.Hour)})
	for name, content := range map[string][]byte{"old": old, "broken": []byte("{"), "empty": nil} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		p, err := e.Probe(short, kernel, initrd, cache)
		cancel()
		if err == nil && p.Cached {
			t.Errorf("%s: believed %+v", name, p)
		}
		if now, _ := os.ReadFile(path); err != nil && !bytes.Equal(now, content) {
			t.Errorf("%s: a probe that was cut short is remembered: %s", name, now)
		}
	}
	if first.Works {
		return
	}
	s := engine.Spec{Name: "test", Kernel: kernel, Initrd: initrd, CPUs: 1, MemoryMiB: 192, Accel: engine.AccelKVM, CacheDir: cache}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Probe(t.Context(), kernel, initrd, cache); err != nil {
		t.Fatal(err)
	}
	if vm, err := e.Start(t.Context(), s); err == nil {
		vm.Kill()
		<-vm.Done()
		vm.Control().Close()
		t.Error("started with a KVM that does not work")
	} else {
		t.Log(err)
	}
	s.Accel = engine.AccelAuto
	vm, err := e.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if vm.Accel() != engine.AccelTCG || !strings.Contains(vm.Notice(), "using emulation") || !strings.Contains(vm.Notice(), "msb doctor") {
		t.Errorf("auto: %s, notice %q", vm.Accel(), vm.Notice())
	}
	vm.Kill()
	<-vm.Done()
	vm.Control().Close()
}

func TestErrorsSayWhatToDo(t *testing.T) {
	none := qemu.New(qemu.WithBinaries("/nowhere/qemu", "/nowhere/qemu-img"))
	base, dir := enginetest.Base(t, "", 1<<20), t.TempDir()
	kernel := filepath.Join(dir, "kernel")
	if err := os.WriteFile(kernel, []byte("no kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := engine.Spec{Name: "test", Kernel: kernel, Initrd: kernel, CPUs: 1, MemoryMiB: 192, Accel: engine.AccelTCG}
	_, startErr := none.Start(t.Context(), s)
	for name, err := range map[string]error{
		"check": none.Check(t.Context()),
		"disk":  none.CreateDisk(t.Context(), base, filepath.Join(dir, "disk"), 0),
		"start": startErr,
	} {
		if err == nil || !strings.Contains(err.Error(), "apt-get install") {
			t.Errorf("%s without QEMU: %v", name, err)
		}
	}
	if err := makeEngine().Check(t.Context()); err != nil {
		enginetest.Missing(t, "QEMU cannot run here", err)
	}
	if vm, err := makeEngine().Start(t.Context(), s); err == nil { // QEMU says no, or the firmware finds nothing to start
		vm.Kill()
		<-vm.Done()
		vm.Control().Close()
	} else if !strings.Contains(err.Error(), "QEMU") {
		t.Errorf("a kernel that is none: %v", err)
	} else {
		t.Log(err)
	}
	s.Kernel = filepath.Join(dir, "none")
	if _, err := makeEngine().Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "kernel: ") {
		t.Errorf("a kernel that is not there: %v", err)
	}
}
