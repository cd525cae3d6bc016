package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// contender is a file system that shows the directory backing of this host.
type contender struct {
	name string
	dir  string // where the work is done
	up   func(ctx context.Context) error
	down func(ctx context.Context) error
}

// task is one row of the table: how long a contender takes for it. cold tasks
// begin with a fresh mount.
type task struct {
	what string
	cold bool
	run  func(ctx context.Context, dir string) error
	aims string // against sshfs, against loopback
}

// mounts measures the mount against sshfs with its server spawned directly and
// go-fuse's loopback without passthrough, all over the same files: those of a
// sandbox of the process engine.
func (b *bench) mounts(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "msb-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	name := fmt.Sprintf("bench-%d", os.Getpid())
	if err := b.command(ctx, "create", b.image, "-n", name, "--engine", "process", "--root-disk", "6G", "-q"); err != nil {
		return err
	}
	defer b.command(context.WithoutCancel(ctx), "rm", "-f", name)
	backing, err := b.backing(ctx, name)
	if err != nil {
		return err
	}
	all, err := b.contenders(name, dir, backing)
	if err != nil {
		return err
	}
	tasks := b.mountTasks(dir)
	if err := makeTree(ctx, b.tree, filepath.Join(dir, "tree.tar")); err != nil {
		return err
	}
	took := make([][]time.Duration, len(tasks))
	defer func() {
		for _, c := range all {
			_ = c.down(context.WithoutCancel(ctx))
		}
	}()
	for _, c := range all {
		if err := c.up(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	// Task by task, one contender after the other, so that what else the machine
	// does hits all of them.
	times := make([][][]time.Duration, len(tasks))
	for round := range b.rounds {
		for i, t := range tasks {
			if round == 0 {
				times[i] = make([][]time.Duration, len(all))
			}
			for j := range all {
				c := all[(j+round)%len(all)]
				d, err := c.once(ctx, t)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", c.name, t.what, err)
				}
				at := (j + round) % len(all)
				times[i][at] = append(times[i][at], d)
			}
		}
		for _, c := range all {
			if err := os.RemoveAll(c.work()); err != nil {
				return err
			}
		}
	}
	for i := range tasks {
		took[i] = make([]time.Duration, len(all))
		for j := range all {
			took[i][j] = slices.Min(times[i][j]) // what else the machine does only ever adds
		}
	}
	printMounts(tasks, all, took)
	return nil
}

// backing finds the sandbox's /home/dev on this host.
func (b *bench) backing(ctx context.Context, name string) (string, error) {
	marker := "/home/dev/." + name
	if err := b.command(ctx, "exec", name, "--", "touch", marker); err != nil {
		return "", err
	}
	found, err := filepath.Glob("/proc/[0-9]*/root" + marker)
	if err != nil || len(found) == 0 {
		return "", errors.New("the sandbox's files are not to be seen from here: run it as root")
	}
	return filepath.Dir(found[0]), nil
}

func (b *bench) contenders(name, dir, backing string) ([]contender, error) {
	script := filepath.Join(dir, "sftp")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n"), 0o755); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all := []contender{{name: "msb"}, {name: "sshfs"}, {name: "loopback"}}
	for i := range all {
		c := &all[i]
		mnt := filepath.Join(dir, c.name+".mnt")
		if err := os.Mkdir(mnt, 0o755); err != nil {
			return nil, err
		}
		c.dir = mnt
		c.down = func(ctx context.Context) error { return command(ctx, "fusermount3", "-u", mnt) }
		switch c.name {
		case "msb":
			c.up = func(ctx context.Context) error { return b.command(ctx, "mount", name+":/home/dev", mnt) }
			c.down = func(ctx context.Context) error { return b.command(ctx, "umount", mnt) }
		case "sshfs":
			c.up = func(ctx context.Context) error {
				return command(ctx, "sshfs", "x:"+backing, mnt, "-o", "ssh_command="+script)
			}
		case "loopback":
			c.up = func(ctx context.Context) error {
				if err := exec.Command(self, "-loopback", mnt, backing).Start(); err != nil {
					return err
				}
				return waitMounted(ctx, mnt)
			}
		}
	}
	return all, nil
}

func waitMounted(ctx context.Context, dir string) error {
	var st unix.Statfs_t
	for range 500 {
		if unix.Statfs(dir, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("%s: not mounted", dir)
}

func (c contender) work() string { return filepath.Join(c.dir, "work-"+c.name) }

// once does a task and returns how long it took.
func (c contender) once(ctx context.Context, t task) (time.Duration, error) {
	if t.cold {
		if err := errors.Join(c.down(ctx), c.up(ctx)); err != nil {
			return 0, err
		}
	}
	if err := os.MkdirAll(c.work(), 0o755); err != nil {
		return 0, err
	}
	unix.Sync()
	start := time.Now()
	err := t.run(ctx, c.work())
	return time.Since(start), err
}

func (b *bench) mountTasks(dir string) []task {
	size := int(b.size) << 20
	tar := filepath.Join(dir, "tree.tar")
	sh := func(script string) func(context.Context, string) error {
		return func(ctx context.Context, dir string) error {
			cmd := exec.CommandContext(ctx, "sh", "-ec", script)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "TAR="+tar, "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent", "GIT_AUTHOR_NAME=a",
				"GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
				"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	return []task{
		{"sequential write", false, func(_ context.Context, d string) error { return writeFile(d+"/big", size, 1<<20) }, "2 0.8"},
		{"sequential read, cold", true, func(_ context.Context, d string) error { return readFile(d + "/big") }, "2 0.8"},
		{"random 4 KiB reads, 16 threads", true, func(_ context.Context, d string) error { return readRandom(d+"/big", size, 4000) }, "2 0.5"},
		{"4 KiB writes, sequential", false, func(_ context.Context, d string) error { return writeFile(d+"/small", size/8, 4096) }, "2 1"},
		{"untar a source tree", true, sh(`mkdir tree; tar -C tree -xf "$TAR"`), "1.5 1"},
		{"git add -A && git commit", false, sh(`cd tree; git init -q; git add -A; git commit -qm x`), "1.5 1"},
		{"git status, cold", true, sh(`cd tree; git status --porcelain`), "2 1"},
		{"git status, warm", false, sh(`cd tree; git status --porcelain`), "2 1"},
		{"grep -r, cold", true, sh(`! grep -r nosuchwordanywhere tree`), "1.5 0.8"},
		{"grep -r, warm", false, sh(`! grep -r nosuchwordanywhere tree`), "1.5 0.8"},
		{"rm -rf of the tree", true, sh(`rm -rf tree`), "1.5 1"},
		{"make " + strconv.Itoa(b.entries) + " files", true, sh(`rm -rf many; mkdir many; cd many; seq ` + strconv.Itoa(b.entries) + ` | xargs touch`), ""},
		{"ls -l of " + strconv.Itoa(b.entries) + " entries", true, sh(`ls -l many >/dev/null`), "2 1"},
	}
}

func printMounts(tasks []task, all []contender, took [][]time.Duration) {
	fmt.Printf("\n%-34s", "how long it takes")
	for _, c := range all {
		fmt.Printf("%12s", c.name)
	}
	fmt.Printf("%14s%14s   %s\n", "sshfs/msb", "loopback/msb", "aims")
	for i, t := range tasks {
		fmt.Printf("%-34s", t.what)
		for j := range all {
			fmt.Printf("%12s", took[i][j].Round(100*time.Microsecond))
		}
		ratio := func(j int) float64 { return float64(took[i][j]) / float64(took[i][0]) }
		fmt.Printf("%14.2f%14.2f   %s\n", ratio(1), ratio(2), strings.Replace(t.aims, " ", " / ", 1))
	}
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// makeTree packs a source tree: by default some of the Go distribution's.
func makeTree(ctx context.Context, tree, tar string) error {
	args := []string{"-C", tree, "-cf", tar, "."}
	if tree == "" {
		root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("go env GOROOT: %w", err)
		}
		args = []string{"-C", filepath.Join(strings.TrimSpace(string(root)), "src"), "-cf", tar, "net", "runtime", "crypto", "internal"}
	}
	return command(ctx, "tar", args...)
}

func writeFile(path string, size, piece int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	buf := make([]byte, piece)
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	for done := 0; done < size; done += piece {
		if _, err := f.Write(buf); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

func readFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		if n, err := f.Read(buf); n == 0 {
			if err != nil && err.Error() != "EOF" {
				return err
			}
			return nil
		}
	}
}

func readRandom(path string, size, reads int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	for i := range 16 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			buf := make([]byte, 4096)
			for range reads / 16 {
				if _, err := f.ReadAt(buf, int64(r.IntN(size/4096))*4096); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}
