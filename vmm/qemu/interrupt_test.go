package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A tool that is interrupted reports the interruption, and Ctrl-C on the terminal does not reach it by itself.
func TestInterruptedTools(t *testing.T) {
	dir := t.TempDir()
	group := filepath.Join(dir, "group")
	script := filepath.Join(dir, "tool")
	text := "#!/bin/sh\nread -r _ _ _ _ pgrp _ </proc/self/stat\necho $pgrp >" + group + ".new && mv " + group + ".new " + group + "\nexec sleep 60\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(dir, "base")
	if err := os.WriteFile(base, make([]byte, 512), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &Engine{binary: script, img: script}
	for name, do := range map[string]func(context.Context) error{
		"version": func(ctx context.Context) error { _, err := e.Version(ctx); return err },
		"disk":    func(ctx context.Context) error { return e.CreateDisk(ctx, base, filepath.Join(dir, "disk"), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(group)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan error, 1)
			go func() { result <- do(ctx) }()
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if b, err := os.ReadFile(group); err == nil {
					if pgrp, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || pgrp == syscall.Getpgrp() {
						t.Errorf("it runs in our process group: %q, %v", b, err)
					}
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the tool did not start")
				}
			}
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
	}
}
