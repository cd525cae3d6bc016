package image

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestTinyRoot(t *testing.T) {
	var out, again bytes.Buffer
	applets := []string{"bin/sh", "usr/bin/awk", "sbin/ip", "usr/libexec/thing"}
	if err := writeTiny(&out, []byte("busybox"), applets); err != nil {
		t.Fatal(err)
	}
	if err := writeTiny(&again, []byte("busybox"), applets); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same inputs give another tar")
	}
	files := map[string]*tar.Header{}
	body := map[string]string{}
	r := tar.NewReader(&out)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if i := strings.LastIndexByte(name, '/'); i > 0 && files[name[:i]] == nil {
			t.Errorf("%s comes before its directory", name)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[name], body[name] = h, string(data)
	}
	for _, name := range applets {
		if h := files[name]; h == nil || h.Linkname != "/bin/busybox" {
			t.Errorf("%s is %+v", name, h)
		}
	}
	if h := files["home/dev"]; h == nil || h.Uid != 1000 || h.Gid != 1000 {
		t.Errorf("home of dev is %+v", h)
	}
	if h := files["tmp"]; h == nil || h.Mode != 0o1777 {
		t.Errorf("/tmp is %+v", h)
	}
	if !slices.Contains(strings.Split(body["etc/passwd"], "\n"), "dev:x:1000:1000:dev:/home/dev:/bin/sh") {
		t.Errorf("passwd is %q", body["etc/passwd"])
	}
}

func TestDebianSources(t *testing.T) {
	const site = "http://mirror.example/debian/"
	for _, c := range []struct {
		name, targets string
		want          []string
	}{
		{"mirror, updates and security", "Debian\t" + site + "\toldstable\tbookworm\tmain\n" +
			"Debian\t" + site + "\toldstable-updates\tbookworm-updates\tmain\n" +
			"Debian\thttp://sec.example/debian-security/\toldstable-security\tbookworm-security\tmain\n" +
			"Debian\t" + site + "\toldstable\tbookworm\tcontrib\n" +
			"Debian\t" + site + "\tunstable\tsid\tmain\n" +
			"Other\thttp://other.example/\tx\tbookworm\tmain\n", []string{
			"deb " + site + " bookworm main", "deb " + site + " bookworm-updates main",
			"deb http://sec.example/debian-security/ bookworm-security main",
		}},
		{"nothing known", "", nil},
		{"security only", "Debian\thttp://sec.example/\tx\tbookworm-security\tmain\n", nil},
	} {
		if got := sourceLines(c.targets, "bookworm"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
