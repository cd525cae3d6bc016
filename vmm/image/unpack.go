package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"msb/vmm/engine"
)

// What a machine that unpacks is given. Page cache is what it needs its memory for.
const (
	unpackMemoryMiB = 512
	unpackReplyMax  = 64 << 10
	// unpackPowerOff is how long the guest may take to power off after it has said that all is on disk.
	unpackPowerOff = 30 * time.Second
)

// UnpackInVM returns an Unpacker that boots kernel k with the guest agent (a path) in a machine of engine e, which
// unpacks the tar into the file as its disk. It needs no privileges, and what the tar does to whoever unpacks it
// happens in the machine. accel is one of the engine's accelerators, "" = automatic.
func (l *Library) UnpackInVM(e engine.Engine, k Kernel, guest, accel string) Unpacker {
	return func(ctx context.Context, raw string, tar io.Reader, size int64) error {
		initrd, err := l.Initramfs(ctx, k, guest)
		if err != nil {
			return err
		}
		if err := e.Check(ctx); err != nil {
			return err
		}
		dir, err := newTempDir(l.cacheDir())
		if err != nil {
			return err
		}
		defer dir.discard()
		console := filepath.Join(dir.path, "kernel.log")
		vm, err := e.Start(ctx, engine.Spec{
			Name: "image", Dir: dir.path,
			Kernel: k.Boot, Initrd: initrd, Cmdline: []string{engine.WordUnpack}, Guest: guest,
			Disk: raw, DiskFormat: engine.Raw,
			CPUs: 1, MemoryMiB: unpackMemoryMiB, Accel: accel,
			KernelLog: console, CacheDir: l.cacheDir(),
		})
		if err != nil {
			return err
		}
		err = talkUnpack(ctx, vm, tar)
		if err != nil && ctx.Err() == nil {
			if text := tailOf(console); text != "" {
				err = fmt.Errorf("%w (console of the machine: %s)", err, text)
			}
		}
		return err
	}
}

// talkUnpack feeds the machine, takes its answer and waits until it is gone.
func talkUnpack(ctx context.Context, vm engine.VM, tar io.Reader) error {
	stop := context.AfterFunc(ctx, func() { _ = vm.Kill() })
	defer func() {
		stop()
		_ = vm.Kill()
		<-vm.Done()
	}()
	port := vm.Control()
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{port}, tar, make([]byte, 256<<10))
		sent <- err
	}()
	reply, readErr := readReply(port)
	if ctx.Err() != nil {
		_ = vm.Kill()
		<-sent
		return context.Cause(ctx)
	}
	if reply != "ok" {
		_ = vm.Kill() // ends a writer that nobody reads from
		sendErr := <-sent
		<-vm.Done()
		switch text, refused := strings.CutPrefix(reply, "error:"); {
		case refused:
			return errors.New(cleanText(text))
		case reply != "":
			return fmt.Errorf("the machine that unpacks answered %q", cleanText(reply))
		case vm.Exit().Err != nil:
			return fmt.Errorf("the machine that unpacks ended: %w", vm.Exit().Err)
		case sendErr != nil:
			return fmt.Errorf("the machine that unpacks takes no more: %w", sendErr)
		default:
			return fmt.Errorf("the machine that unpacks ended without an answer: %w", readErr)
		}
	}
	late := time.NewTimer(unpackPowerOff)
	defer late.Stop()
	select {
	case <-vm.Done():
	case <-ctx.Done():
	case <-late.C:
		_ = vm.Kill()
	}
	if ctx.Err() != nil {
		_ = vm.Kill()
	}
	<-vm.Done()
	sendErr := <-sent
	switch exit := vm.Exit(); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case sendErr != nil:
		return fmt.Errorf("the machine said it unpacked a tar that it did not get whole: %w", sendErr)
	case !exit.PoweredOff:
		return fmt.Errorf("the machine that unpacks did not power off in order: %w", errors.Join(exit.Err, errors.New("last writes may be lost")))
	}
	return nil
}

// readReply reads the one line that the guest answers with. Whatever a guest sends, it is bounded.
func readReply(r io.Reader) (string, error) {
	line, err := bufio.NewReaderSize(io.LimitReader(r, unpackReplyMax), 4096).ReadString('\n')
	line = strings.TrimSpace(line)
	if err != nil && line == "" {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return "", err
	}
	return line, nil
}

// tailOf returns the end of a log for an error message.
func tailOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 4096 {
		if _, err := f.Seek(-4096, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, _ := io.ReadAll(io.LimitReader(f, 4096))
	return cleanText(string(data))
}
