package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strings"
)

// debianSuite is what the image "debian" is made of where the host does not say: Debian 12.
const debianSuite = "bookworm"

// debianPackages is what the image has beyond a minimal Debian: what working on code needs and a shell is pleasant with.
var debianPackages = []string{
	"ca-certificates", "git", "less", "nano", "openssh-client", "procps", "python3", "xz-utils",
}

// debianDropped are files that no program reads. dpkg remembers it, so later installs in the sandbox stay small too.
var debianDropped = []string{
	"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*", "path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/share/locale/*", "path-include=/usr/share/locale/locale.alias",
}

// debianHooks run on the finished tree, whose path is $1.
var debianHooks = []string{
	`chroot "$1" useradd --create-home --user-group --uid 1000 --shell /bin/bash --comment dev dev`,
	`install -d -m 755 -o 1000 -g 1000 "$1/work"`,
	`printf 'export LANG=C.UTF-8\n' > "$1/etc/profile.d/lang.sh"`,
	`rm -f "$1/etc/resolv.conf" "$1/etc/hostname" "$1/etc/machine-id"`,
	`printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' > "$1/etc/hosts"`,
	`: > "$1/etc/machine-id"`,
}

// stages of mmdebstrap by the words of its messages, each with the part of the time that is over when it starts
// (measured: about 20 s in all).
var debianStages = []struct {
	words    string
	stage    string
	fraction float64
}{
	{"running apt-get update", "package lists", 0.02},
	{"downloading packages", "fetching packages", 0.10},
	{"extracting archives", "unpacking packages", 0.25},
	{"installing essential packages", "installing the base system", 0.35},
	{"installing remaining packages", "installing packages", 0.50},
	{"running --customize-hook", "creating the user", 0.88},
	{"cleaning package lists", "cleaning up", 0.90},
	{"creating tarball", "collecting the files", 0.92},
}

// debianRoot writes the root file system of the image "debian", made by mmdebstrap. It works as root, as a user with
// user namespaces, and as one with sudo.
func debianRoot(ctx context.Context, w io.Writer, progress Progress) error {
	if _, err := lookTool("mmdebstrap"); err != nil {
		return errors.New("there is no mmdebstrap on this host: install package mmdebstrap, " +
			"or take another root file system with `msb image import`")
	}
	suite, sources := debianSources(ctx)
	mode, sudo, err := debianMode(ctx)
	if err != nil {
		return err
	}
	args := []string{"--mode=" + mode, "--variant=minbase", "--format=tar", "--include=" + strings.Join(debianPackages, ",")}
	for _, line := range debianDropped {
		args = append(args, "--dpkgopt="+line)
	}
	for _, hook := range debianHooks {
		args = append(args, "--customize-hook="+hook)
	}
	args = append(args, suite, "-")
	args = append(args, sources...)
	// Its own directory is somewhere that the user of a namespace can enter.
	t := tool{name: "mmdebstrap", args: args, dir: "/", stdout: w, lines: debianProgress(progress)}
	if sudo {
		// sudo hands a signal on to one process only; timeout hands it on to all.
		t.name, t.args = "sudo", append([]string{"-n", "timeout", "--kill-after=60", "7200", "mmdebstrap"}, args...)
	}
	progress.report("starting", 0)
	if err := t.run(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("making a Debian %s failed: %w; check the network and `apt-get update`", suite, err)
	}
	return nil
}

// debianProgress turns the messages of mmdebstrap into stages.
func debianProgress(progress Progress) func(string) {
	return func(line string) {
		for _, s := range debianStages {
			if strings.Contains(line, s.words) {
				progress.report(s.stage, s.fraction)
				return
			}
		}
	}
}

// debianMode picks how mmdebstrap gets a tree with files of several owners.
func debianMode(ctx context.Context) (mode string, sudo bool, err error) {
	if os.Geteuid() == 0 {
		return "root", false, nil
	}
	why := canUnshare(ctx)
	if why == nil {
		return "unshare", false, nil
	}
	if (tool{name: "sudo", args: []string{"-n", "true"}}).run(ctx) == nil {
		return "root", true, nil
	}
	if ctx.Err() != nil {
		return "", false, context.Cause(ctx)
	}
	return "", false, fmt.Errorf("an ordinary user needs user namespaces or sudo for this: %w, and `sudo -n` is refused; "+
		"install package uidmap and add a range for yourself to /etc/subuid and /etc/subgid, or run `sudo -v` before, "+
		"or take a root file system made elsewhere with `msb image import`", why)
}

// canUnshare tells why this user cannot work in a user namespace, or nil.
func canUnshare(ctx context.Context) error {
	if _, err := lookTool("newuidmap"); err != nil {
		return errors.New("there is no newuidmap")
	}
	u, err := user.Current()
	if err != nil {
		return err
	}
	for _, path := range []string{"/etc/subuid", "/etc/subgid"} {
		data, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(strings.Split(string(data), "\n"), func(line string) bool {
			return strings.HasPrefix(line, u.Username+":") || strings.HasPrefix(line, u.Uid+":")
		}) {
			return fmt.Errorf("%s has no range for %s", path, u.Username)
		}
	}
	// Mounting is what some hosts forbid in a namespace (a container, AppArmor) though they allow to make one.
	probe := tool{name: "unshare", args: []string{"--user", "--map-root-user", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"}}
	if err := probe.run(ctx); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return errors.New("there is no unshare")
		}
		return fmt.Errorf("user namespaces do not work here (%w)", err)
	}
	return nil
}

// debianSources returns the suite and the package sources of a Debian host, so that a host with a mirror of its own
// uses that. Anywhere else mmdebstrap has its own for the default suite.
func debianSources(ctx context.Context) (suite string, sources []string) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return debianSuite, nil
	}
	id, codename := "", ""
	for line := range strings.SplitSeq(string(release), "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch value = strings.Trim(value, `"'`); key {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			codename = value
		}
	}
	if id != "debian" || codename == "" {
		return debianSuite, nil
	}
	out, err := tool{name: "apt-get", args: []string{
		"indextargets", "--format", "$(ORIGIN)\t$(REPO_URI)\t$(SUITE)\t$(CODENAME)\t$(COMPONENT)", "Created-By: Packages",
	}}.output(ctx)
	if err != nil {
		return codename, nil
	}
	return codename, sourceLines(out, codename)
}

// sourceLines makes sources.list lines of apt's index targets: those of Debian itself for the suite and its updates.
// It returns none when the suite itself is not among them.
func sourceLines(targets, codename string) []string {
	var lines []string
	whole := false
	for line := range strings.SplitSeq(targets, "\n") {
		f := strings.Split(line, "\t")
		if len(f) != 5 || f[0] != "Debian" || f[4] != "main" || !strings.Contains(f[1], "://") {
			continue
		}
		switch f[3] { // the codename in the Release file
		case codename, codename + "-updates", codename + "-security":
		default:
			continue
		}
		entry := fmt.Sprintf("deb %s %s main", f[1], f[3])
		if !slices.Contains(lines, entry) {
			lines = append(lines, entry)
		}
		whole = whole || f[3] == codename
	}
	if !whole {
		return nil
	}
	return lines
}
