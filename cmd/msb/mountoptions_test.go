package main

import (
	"slices"
	"strings"
	"testing"

	"msb/fusefs"
)

func TestMountHelper(t *testing.T) {
	for _, c := range []struct{ argv, want string }{
		{"msb ls -q", "ls -q"},
		{"msb", ""},
		{"msb mount demo:/etc /mnt", "mount demo:/etc /mnt"},
		{"msb demo:/work /mnt -o rw,nosuid", "mount demo:/work /mnt -o rw,nosuid"},
		{"msb demo: /mnt -o ro", "mount demo: /mnt -o ro"},
		{"/sbin/mount.fuse.msb demo /mnt -n -v -o ro", "mount demo /mnt -o ro"},
		{"msb exec demo:x y", "exec demo:x y"},
	} {
		if got := strings.Join(mountHelper(strings.Fields(c.argv)), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.argv, got, c.want)
		}
	}
}

func TestMountOptions(t *testing.T) {
	o := mountOptions{options: strings.Split("ro,nosuid,dev,allow_other,umask=022,symlinks=raw,cache=strict,uid_map=1000:5,x-systemd.automount", ",")}
	if err := o.resolve(); err != nil {
		t.Fatal(err)
	}
	got, err := o.fuse()
	if err != nil {
		t.Fatal(err)
	}
	if !got.ReadOnly || !got.AllowOther || got.Umask != 0o022 || got.Symlinks != fusefs.Raw || got.EntryTimeout >= 0 ||
		!slices.Equal(got.UIDMap, []fusefs.IDPair{{Guest: 1000, Host: 5}}) || got.GIDMap != nil {
		t.Errorf("%+v", got)
	}
	again := strings.Join(o.args(), " ")
	for _, want := range []string{"--read-only", "--allow-other", "--umask 022", "--symlinks raw", "--cache strict", "--uid-map 1000:5"} {
		if !strings.Contains(again, want) {
			t.Errorf("%q does not hold %q", again, want)
		}
	}
	for _, bad := range []mountOptions{
		{options: []string{"nosuch"}}, {umask: "9"}, {symlinks: "maybe"}, {cache: "never"}, {uidMap: []string{"1"}},
		{gidMap: []string{"1:x"}}, {uidMap: []string{"4294967295:1"}},
	} {
		if err := bad.resolve(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if pairs, err := idPairs("--uid-map", []string{"none"}); err != nil || pairs == nil || len(pairs) != 0 {
		t.Errorf("none: %v %v", pairs, err)
	}
}
