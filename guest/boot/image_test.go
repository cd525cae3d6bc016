package boot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// image makes a root directory of files.
func image(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFinishImage(t *testing.T) {
	const devLine = "dev:x:1000:1000::/home/dev:/bin/sh\n"
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  map[string]string
	}{
		{"an empty image", nil, map[string]string{
			"etc/passwd":      "root:x:0:0:root:/root:/bin/sh\n" + devLine + "msb-turn:x:990:990::/nonexistent:/bin/false\n",
			"etc/group":       "root:x:0:\ndev:x:1000:\nmsb-turn:x:990:\n",
			"etc/hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
			"etc/hostname":    "sandbox\n",
			"etc/resolv.conf": "nameserver 10.0.2.3\n",
			"home/dev":        "/", "tmp": "/", "proc": "/", ".msb": "/",
		}},
		{"bash is the shell where it is", map[string]string{"bin/bash": ""}, map[string]string{
			"etc/passwd": "root:x:0:0:root:/root:/bin/bash\ndev:x:1000:1000::/home/dev:/bin/bash\nmsb-turn:x:990:990::/nonexistent:/bin/false\n",
		}},
		{"users of the image stay", map[string]string{"etc/passwd": "root:x:0:0::/:/bin/ash\ndev:x:500:500::/home/dev:/bin/ash"}, map[string]string{
			"etc/passwd": "root:x:0:0::/:/bin/ash\ndev:x:500:500::/home/dev:/bin/ash\nmsb-turn:x:990:990::/nonexistent:/bin/false\n",
		}},
		{"a number that is taken", map[string]string{"etc/passwd": "root:x:0:0::/:/bin/ash\n" + devLine + "mail:x:990:8::/:/bin/false\n"}, map[string]string{
			"etc/passwd": "root:x:0:0::/:/bin/ash\n" + devLine + "mail:x:990:8::/:/bin/false\n",
		}},
		{"settings of the image stay", map[string]string{"etc/resolv.conf": "nameserver 9.9.9.9\n", "etc/hostname": "\n"}, map[string]string{
			"etc/resolv.conf": "nameserver 9.9.9.9\n", "etc/hostname": "sandbox\n",
		}},
		{"every machine has an id of its own", map[string]string{"etc/machine-id": "0123\n"}, map[string]string{"etc/machine-id": ""}},
		{"the home begins as the skeleton says", map[string]string{"etc/skel/.profile": "umask 022\n"}, map[string]string{"home/dev/.profile": "umask 022\n"}},
		{"a file where a folder belongs", map[string]string{"tmp": "text"}, map[string]string{"tmp": "/"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := image(t, tc.files)
			for range 2 { // a second time changes nothing
				if err := inRoot(t, dir, finishImage); err != nil {
					t.Fatal(err)
				}
				for name, want := range tc.want {
					if got := look(filepath.Join(dir, name)); got != want {
						t.Errorf("%s is %q, want %q", name, got, want)
					}
				}
			}
		})
	}
}

// The image is not trusted: what is no text file where one belongs is refused.
func TestFinishImageRefusesWhatIsNoFile(t *testing.T) {
	dir := image(t, nil)
	if err := os.MkdirAll(filepath.Join(dir, "etc/passwd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := inRoot(t, dir, finishImage); err == nil || !strings.Contains(err.Error(), "/etc/passwd: not a regular file") {
		t.Errorf("error %v", err)
	}
}
