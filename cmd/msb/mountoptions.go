package main

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/fusefs"
)

// mountOptions say what is mounted where.
type mountOptions struct {
	path       string // directory in the sandbox
	dir        string // mount point on the host
	foreground bool
	readOnly   bool
	allowOther bool
	nonEmpty   bool
	umask      string
	symlinks   string
	cache      string
	uidMap     []string
	gidMap     []string
	options    []string
}

func (o *mountOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.readOnly, "read-only", false, "refuse every change")
	f.BoolVar(&o.allowOther, "allow-other", false, "let other users of this host in")
	f.BoolVar(&o.nonEmpty, "nonempty", false, "also on a directory that is not empty, whose files it hides")
	f.StringVar(&o.umask, "umask", "", "permissions that files do not show, in octal")
	f.StringVar(&o.symlinks, "symlinks", "", "contain (none leads out of the mount; default), raw, or hide")
	f.StringVar(&o.cache, "cache", "", "strict (nothing is kept), auto (for a minute while the guest tells what changes; default), or forever (only this mount changes files)")
	f.StringSliceVar(&o.uidMap, "uid-map", nil, "GUEST:HOST users that are the same; none for the ids as they are")
	f.StringSliceVar(&o.gidMap, "gid-map", nil, "GUEST:HOST groups that are the same")
	f.StringSliceVarP(&o.options, "options", "o", nil, "options as mount(8) has them, separated by commas")
}

// args are the flags again, for the process that serves the mount.
func (o *mountOptions) args() []string {
	var args []string
	for flag, on := range map[string]bool{"--read-only": o.readOnly, "--allow-other": o.allowOther, "--nonempty": o.nonEmpty} {
		if on {
			args = append(args, flag)
		}
	}
	for flag, value := range map[string]string{
		"--umask": o.umask, "--symlinks": o.symlinks, "--cache": o.cache,
		"--uid-map": strings.Join(o.uidMap, ","), "--gid-map": strings.Join(o.gidMap, ","),
	} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	return args
}

// ignored are options of mount(8) and fstab(5) that mean nothing here or are so
// anyway.
var ignored = []string{
	"rw", "defaults", "default_permissions", "nosuid", "nodev", "suid", "dev", "exec", "async", "atime", "noatime", "relatime",
	"diratime", "nodiratime", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev", "big_writes", "intr",
}

// resolve puts the options of -o into the fields that flags have.
func (o *mountOptions) resolve() error {
	for _, option := range o.options {
		key, value, has := strings.Cut(strings.TrimSpace(option), "=")
		switch {
		case key == "" || slices.Contains(ignored, key) || strings.HasPrefix(key, "x-") || strings.HasPrefix(key, "comment"):
		case key == "ro":
			o.readOnly = true
		case key == "allow_other":
			o.allowOther = true
		case key == "nonempty":
			o.nonEmpty = true
		case key == "umask" && has:
			o.umask = value
		case key == "symlinks" && has:
			o.symlinks = value
		case key == "cache" && has:
			o.cache = value
		case (key == "uid_map" || key == "uid-map") && has:
			o.uidMap = append(o.uidMap, value)
		case (key == "gid_map" || key == "gid-map") && has:
			o.gidMap = append(o.gidMap, value)
		default:
			return &usageError{fmt.Errorf("-o %s: is no option of this mount: see msb mount --help", option)}
		}
	}
	o.options = nil
	_, err := o.fuse()
	return err
}

// forever is how long --cache forever keeps names and attributes.
const forever = 24 * time.Hour

// fuse translates the options.
func (o *mountOptions) fuse() (fusefs.Options, error) {
	fo := fusefs.Options{Root: o.path, ReadOnly: o.readOnly, AllowOther: o.allowOther, NonEmpty: o.nonEmpty}
	if o.umask != "" {
		n, err := strconv.ParseUint(o.umask, 8, 32)
		if err != nil || n > 0o777 {
			return fo, &usageError{fmt.Errorf("--umask %q: give an octal number such as 022", o.umask)}
		}
		fo.Umask = uint32(n)
	}
	switch s := fusefs.Symlinks(o.symlinks); s {
	case "", fusefs.Contain, fusefs.Raw, fusefs.Hide:
		fo.Symlinks = s
	default:
		return fo, &usageError{fmt.Errorf("--symlinks %q: give contain, raw or hide", o.symlinks)}
	}
	switch o.cache {
	case "", "auto":
	case "strict":
		fo.EntryTimeout, fo.AttrTimeout = -1, -1
	case "forever":
		fo.EntryTimeout, fo.AttrTimeout, fo.Alone = forever, forever, true
	default:
		return fo, &usageError{fmt.Errorf("--cache %q: give strict, auto or forever", o.cache)}
	}
	var err error
	if fo.UIDMap, err = idPairs("--uid-map", o.uidMap); err == nil {
		fo.GIDMap, err = idPairs("--gid-map", o.gidMap)
	}
	return fo, err
}

// idPairs reads GUEST:HOST pairs. "none" is a map without any, nil the default.
func idPairs(flag string, list []string) ([]fusefs.IDPair, error) {
	if len(list) == 0 {
		return nil, nil
	}
	pairs := []fusefs.IDPair{}
	for _, text := range list {
		if text == "none" {
			continue
		}
		guest, host, ok := strings.Cut(text, ":")
		g, gerr := strconv.ParseUint(guest, 10, 32)
		h, herr := strconv.ParseUint(host, 10, 32)
		if !ok || gerr != nil || herr != nil || g == math.MaxUint32 || h == math.MaxUint32 {
			return nil, &usageError{fmt.Errorf("%s %q: give two numbers, the guest's first, such as 1000:1001", flag, text)}
		}
		pairs = append(pairs, fusefs.IDPair{Guest: uint32(g), Host: uint32(h)})
	}
	return pairs, nil
}

// mountSource is what mount(8) names as the device: NAME:/path or NAME: .
var mountSource = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*:(/.*)?$`)

// mountHelper rewrites the arguments of a helper of mount(8), which are a source,
// a directory and options, for msb mount. It is called as /sbin/mount.fuse.msb,
// or by mount.fuse as `msb SOURCE DIR -o OPTIONS`.
func mountHelper(argv []string) []string {
	if len(argv) < 3 {
		return argv[1:]
	}
	args := argv[1:]
	if base := filepath.Base(argv[0]); base != "mount.fuse.msb" && !mountSource.MatchString(args[0]) {
		return args
	}
	out := []string{"mount"}
	for _, a := range args {
		switch a {
		case "-n", "-v", "-s": // no mtab, talk more, take options that nobody knows: nothing to do here
		default:
			out = append(out, a)
		}
	}
	return out
}
