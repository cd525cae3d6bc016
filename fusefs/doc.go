// Package fusefs shows a directory of a sandbox as a file system of this host.
//
// Mount serves the kernel's FUSE requests through one agentclient connection
// that is renewed when it is lost. It is built on go-fuse's raw interface:
// directory listings then carry their attributes without a lookup for each
// entry, read results leave the read-ahead buffers without a copy, and a request
// is addressed by node and one name.
//
// There are two backends behind one interface, chosen when the mount is made:
//
//   - nodeFS for a guest that serves msb.fs: by node handle and single names,
//     with everything that Linux knows of a file.
//   - pathFS for every other guest: by path, with whole seconds. Link counts are
//     1, statfs tells a fixed size, fsync means "in the guest's kernel", locks
//     are local to this host; hard links, special files, extended attributes and
//     the flags of renameat2 are refused.
//
// What a program can rely on with both:
//
//   - Bytes written are in the guest when fsync or close returns; a write that
//     failed later than its own call is reported by fsync and by close.
//   - A file is read as it was at or after the moment it was opened. Names and
//     attributes are cached for Options.EntryTimeout and Options.AttrTimeout.
//   - While a guest tells what others change in it (msb.fs.watch), all that is
//     cached for Options.WatchTimeout, and dropped when it has become untrue: a
//     file is then read as it was a moment before.
//   - Every request ends: names within 5 s, data within 30 s, and at once with
//     ENOTCONN while there is no connection. Ctrl-C ends a request early.
//
// Everything that comes from the guest is checked: names, kinds, sizes, times
// and symlink targets. A symlink never leads out of the mount.
//
// The process that serves a mount must not use it: it would wait for itself.
package fusefs
