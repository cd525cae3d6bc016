package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// errNoApt is why a host cannot fetch packages at all.
var errNoApt = errors.New("this host has no apt (apt-cache, apt-get, dpkg-deb)")

// apt fetches packages without installing them. It needs no privileges. The host's package lists are used; where
// these are missing or too old, lists of its own are fetched into dir.
type apt struct {
	dir      string // temporary, removed by the caller
	own      bool   // use lists of our own
	progress Progress
}

// debPackage is one package in one version, as the lists describe it.
type debPackage struct {
	name, version string
	size          int64 // bytes of the .deb
	depends       []string
}

func newApt(dir string, progress Progress) (*apt, error) {
	for _, name := range []string{"apt-cache", "apt-get", "dpkg-deb"} {
		if _, err := lookTool(name); err != nil {
			return nil, errNoApt
		}
	}
	return &apt{dir: dir, progress: progress}, nil
}

// fetch downloads and unpacks a package and returns it and the directory with its files. resolve picks the package;
// it is asked again after the lists were fetched anew, which happens once when anything fails with those of the host.
func (a *apt) fetch(ctx context.Context, resolve func(context.Context) (debPackage, error)) (debPackage, string, error) {
	pkg, root, err := a.try(ctx, resolve)
	if err == nil || ctx.Err() != nil || a.own || errors.Is(err, errStop) {
		return pkg, root, err
	}
	if updateErr := a.update(ctx); updateErr != nil {
		if ctx.Err() != nil {
			return debPackage{}, "", context.Cause(ctx)
		}
		return debPackage{}, "", fmt.Errorf("%w (and fetching fresh package lists failed too: %w)", err, updateErr)
	}
	return a.try(ctx, resolve)
}

// errStop marks a failure that fresh package lists do not mend.
var errStop = errors.New("")

func (a *apt) try(ctx context.Context, resolve func(context.Context) (debPackage, error)) (debPackage, string, error) {
	pkg, err := resolve(ctx)
	if err != nil {
		return debPackage{}, "", err
	}
	deb, err := a.download(ctx, pkg)
	if err != nil {
		return debPackage{}, "", err
	}
	a.progress.report("unpacking "+pkg.name, -1)
	root := filepath.Join(a.dir, "root")
	if err := os.RemoveAll(root); err != nil {
		return debPackage{}, "", fmt.Errorf("%w%w", errStop, err)
	}
	if err := (tool{name: "dpkg-deb", args: []string{"-x", deb, root}}).run(ctx); err != nil {
		return debPackage{}, "", fmt.Errorf("cannot unpack package %s: %w%w", pkg.name, err, errStop)
	}
	return pkg, root, os.Remove(deb)
}

// show returns what the lists say about the version of a package that would be installed.
func (a *apt) show(ctx context.Context, name string) (debPackage, error) {
	out, err := tool{name: "apt-cache", args: a.args("show", "--no-all-versions", "--", name)}.output(ctx)
	if err != nil {
		return debPackage{}, fmt.Errorf("package %s is not in this host's package lists: %w", name, err)
	}
	pkg := parseStanza(out)
	if pkg.name != name || pkg.version == "" {
		return debPackage{}, fmt.Errorf("package %s is not in this host's package lists", name)
	}
	return pkg, nil
}

// parseStanza reads the first paragraph of a package list.
func parseStanza(text string) debPackage {
	var pkg debPackage
	for line := range strings.SplitSeq(text, "\n") {
		if strings.TrimSpace(line) == "" && pkg.name != "" {
			break
		}
		key, value, ok := strings.Cut(line, ": ")
		if !ok || strings.HasPrefix(line, " ") {
			continue
		}
		switch key {
		case "Package":
			pkg.name = value
		case "Version":
			pkg.version = value
		case "Size":
			pkg.size, _ = strconv.ParseInt(value, 10, 64)
		case "Depends":
			for dep := range strings.SplitSeq(value, ",") {
				if words := strings.Fields(dep); len(words) > 0 {
					pkg.depends = append(pkg.depends, words[0])
				}
			}
		}
	}
	return pkg
}

// download fetches the .deb and returns its path.
func (a *apt) download(ctx context.Context, pkg debPackage) (string, error) {
	dir := filepath.Join(a.dir, "deb")
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("%w%w", err, errStop)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("%w%w", err, errStop)
	}
	stage := "fetching " + pkg.name
	stop := a.watch(dir, stage, pkg.size)
	err := tool{name: "apt-get", args: a.args("-q", "download", "--", pkg.name+"="+pkg.version), dir: dir}.run(ctx)
	stop()
	if err != nil {
		return "", fmt.Errorf("cannot fetch package %s %s: %w", pkg.name, pkg.version, err)
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d packages instead of one%w", pkg.name, len(debs), errStop)
	}
	a.progress.report(stage, 1)
	return debs[0], nil
}

// watch reports how much of a download is there until stop is called.
func (a *apt) watch(dir, stage string, size int64) (stop func()) {
	a.progress.report(stage, -1)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				if have := dirSize(dir); size > 0 {
					a.progress.report(stage, min(float64(have)/float64(size), 1))
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func dirSize(dir string) int64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	var sum int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
	}
	return sum
}

// update fetches package lists of our own.
func (a *apt) update(ctx context.Context) error {
	a.progress.report("fetching package lists", -1)
	for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return err
		}
	}
	a.own = true
	return tool{name: "apt-get", args: a.args("-q", "update")}.run(ctx)
}

// args puts the options in front that make apt work in our directory and not in the system's.
func (a *apt) args(args ...string) []string {
	// apt drops to a user of its own when it runs as root, who cannot write here.
	options := []string{"-o", "APT::Sandbox::User=root"}
	if a.own {
		options = append(options,
			"-o", "Dir::State::lists="+filepath.Join(a.dir, "lists"),
			"-o", "Dir::Cache="+filepath.Join(a.dir, "cache"))
	}
	return append(options, args...)
}
