package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeApt puts an apt in front of PATH whose lists and downloads the script decides: $1 is the first word that is not
// an option ("show", "download", "update"), $OWN says whether it works on lists of our own. dpkg-deb unpacks the
// fixture tree.
func fakeApt(t *testing.T, script string, files map[string][]byte) {
	t.Helper()
	dir, tree := t.TempDir(), writeTree(t, files)
	prelude := `#!/bin/sh
OWN=
while [ $# -gt 0 ]; do
	case $1 in
	-o) case $2 in Dir::State::lists=*) OWN=1;; esac; shift 2;;
	-*) shift;;
	*) break;;
	esac
done
case $1 in show) for name; do :; done;; download) for name; do :; done;; esac
`
	for name, body := range map[string]string{
		"apt-get": prelude + script, "apt-cache": prelude + script,
		"dpkg-deb": fmt.Sprintf("#!/bin/sh\ncp -r %q \"$3\"\n", tree),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

const showKernel = `
show() {
	case $1 in
	linux-image-cloud-*) printf 'Package: %s\nVersion: 1-2\nSize: 5\nDepends: linux-image-6.9.1-test (= 1-2)\n\nPackage: old\n' "$1";;
	linux-image-6.9.1-test) printf 'Package: %s\nVersion: 1-2\nSize: 5\n' "$1";;
	*) exit 100;;
	esac
}
`

func kernelPackageFixture(t *testing.T) map[string][]byte {
	files := map[string][]byte{"boot/vmlinuz-6.9.1-test": bzImage("6.9.1-test", gzipped(t, elfFile("", pvhNote())), false)}
	for name, data := range moduleFixture() {
		files["lib/modules/6.9.1-test/"+name] = data
	}
	return files
}

func TestFetchKernel(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         string // "" = fine
	}{
		{"lists are there", showKernel + `case $1 in show) show "$name";; download) echo debby >x.deb;; *) exit 1;; esac`, ""},
		{"no lists yet", showKernel + `case $OWN$1 in 1show) show "$name";; 1download) echo debby >x.deb;; 1update) ;; *) echo "E: No packages found" >&2; exit 100;; esac`, ""},
		{"lists are too old", showKernel + `case $OWN$1 in *show) show "$name";; 1download) echo debby >x.deb;; 1update) ;; *) echo "E: 404  Not Found" >&2; exit 100;; esac`, ""},
		{"no network", showKernel + `case $1 in show) show "$name";; *) echo "Could not resolve host" >&2; exit 100;; esac`, "Could not resolve host"},
		{"no such package", `echo "E: No packages found" >&2; [ $1 = update ] || exit 100`, "not in this host's package lists"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fakeApt(t, c.script, kernelPackageFixture(t))
			l := testLibrary(t)
			k, err := l.FetchKernel(context.Background(), nil)
			noTraces(t, l)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "--kernel FILE --modules DIR") {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if k.Version != "6.9.1-test" || filepath.Base(k.Boot) != "vmlinux" || filepath.Base(k.Image) != "vmlinuz" {
				t.Errorf("kernel is %+v", k)
			}
			if same, err := l.Kernel(); err != nil || same != k {
				t.Errorf("Kernel() = %+v, %v", same, err)
			}
			if plan := mustPlan(t, k.ModulesDir); len(plan.early) != 10 || len(plan.late) != 3 {
				t.Errorf("kept %d and %d modules", len(plan.early), len(plan.late))
			}
			if _, err := os.Stat(filepath.Join(k.ModulesDir, "kernel/drivers/net/unrelated.ko")); err == nil {
				t.Error("kept a module that nobody needs")
			}
			// The second time nothing is downloaded.
			fakeApt(t, showKernel+`case $1 in show) show "$name";; *) exit 1;; esac`, nil)
			if again, err := l.FetchKernel(context.Background(), nil); err != nil || again != k {
				t.Errorf("the second time: %+v, %v", again, err)
			}
		})
	}
}

func TestFetchKernelCancelled(t *testing.T) {
	fakeApt(t, showKernel+`case $1 in show) show "$name";; download) echo part >x.deb; exec sleep 60;; esac`, nil)
	l := testLibrary(t)
	ctx, cancel := context.WithCancel(context.Background())
	_, err := l.FetchKernel(ctx, func(stage string, fraction float64) {
		if strings.HasPrefix(stage, "fetching linux-image") {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	noTraces(t, l)
}

func TestFetchKernelWithoutApt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := testLibrary(t).FetchKernel(context.Background(), nil)
	if err == nil || !strings.Contains(err.Error(), "no apt") || !strings.Contains(err.Error(), "--kernel FILE --modules DIR") {
		t.Errorf("error is %v", err)
	}
}
