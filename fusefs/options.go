package fusefs

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path"
	"strings"
	"time"
)

// Options say what to mount and how. The zero value mounts the guest's "/".
type Options struct {
	// Root is the absolute guest path of the directory to show; "" means "/".
	Root string
	// ReadOnly refuses every change with EROFS.
	ReadOnly bool
	// AllowOther lets other users of this host in, subject to the permissions
	// that the files show. For an ordinary user it needs user_allow_other in
	// /etc/fuse.conf.
	AllowOther bool
	// UIDMap and GIDMap pair ids of the guest with ids of this host; other ids
	// pass through. nil means the default: the guest's user and group 1000
	// and the mounting user and group; nothing for root with AllowOther.
	UIDMap, GIDMap []IDPair
	// Umask is removed from the permissions that files show.
	Umask uint32
	// FsName is the source shown by mount and df; "" means "msb".
	FsName string
	// EntryTimeout and AttrTimeout are how long the kernel may keep names and
	// attributes; 0 means 1 s, a negative value means not at all.
	EntryTimeout, AttrTimeout time.Duration
	// WatchTimeout is how long both are kept while the guest tells what changes;
	// 0 means a minute, a negative value that it is not asked.
	WatchTimeout time.Duration
	// Alone says that nobody changes files but this mount: what it knows holds
	// for as long as EntryTimeout and AttrTimeout say, also what it has not been
	// asked for.
	Alone bool
	// NameTimeout bounds a request for names or attributes (0: 5 s) and
	// DataTimeout one that moves data (0: 30 s).
	NameTimeout, DataTimeout time.Duration
	// Symlinks says what becomes of the guest's symlinks; "" means Contain.
	Symlinks Symlinks
	// Direct opens a connection that carries the files only, past the runtime, to
	// a guest that has such a way (agentclient.Nodes.UseDirect); nil means that
	// there is none. What it cannot do goes the usual way.
	Direct func(ctx context.Context) (net.Conn, error) `json:"-"`
	// NonEmpty allows a mount point that is not empty.
	NonEmpty bool
	// Logger receives what the mount has to say; nil means slog.Default().
	Logger *slog.Logger
}

// Symlinks is what becomes of the guest's symlinks.
type Symlinks string

const (
	// Contain shows them changed so that none leads out of the mount.
	Contain Symlinks = "contain"
	// Raw shows them as they are: a program that follows one may end up at a
	// file of this host that the guest has chosen.
	Raw Symlinks = "raw"
	// Hide shows none and makes none.
	Hide Symlinks = "hide"
)

// IDPair says that Guest, in the guest, and Host, on this host, are the same
// user or group.
type IDPair struct{ Guest, Host uint32 }

func (o Options) withDefaults() (Options, error) {
	if o.Root == "" {
		o.Root = "/"
	}
	if !path.IsAbs(o.Root) || strings.ContainsRune(o.Root, 0) {
		return o, fmt.Errorf("guest path %q: must be absolute, like /home/dev", o.Root)
	}
	o.Root = path.Clean(o.Root)
	if o.FsName == "" {
		o.FsName = "msb"
	}
	if o.Umask&^0o777 != 0 {
		return o, fmt.Errorf("umask %#o: must be between 0 and 0777", o.Umask)
	}
	switch o.Symlinks {
	case "":
		o.Symlinks = Contain
	case Contain, Raw, Hide:
	default:
		return o, fmt.Errorf("symlinks %q: must be contain, raw or hide", o.Symlinks)
	}
	o.EntryTimeout = orDefault(o.EntryTimeout, time.Second)
	o.AttrTimeout = orDefault(o.AttrTimeout, time.Second)
	o.WatchTimeout = orDefault(o.WatchTimeout, time.Minute)
	if o.NameTimeout <= 0 {
		o.NameTimeout = 5 * time.Second
	}
	if o.DataTimeout <= 0 {
		o.DataTimeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

// orDefault reads a timeout where 0 stands for def and less for none.
func orDefault(d, def time.Duration) time.Duration {
	switch {
	case d == 0:
		return def
	case d < 0:
		return 0
	}
	return d
}
