package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// Arrows go down only: what each folder may import of this module, besides itself and what is below it.
var arrows = map[string][]string{
	"protocol":      nil,
	"guest":         {"protocol"},
	"agentclient":   {"protocol"},
	"controlclient": {"protocol"},
	"fusefs":        {"agentclient", "protocol"},
	"vmm":           {"protocol"},
	"turn":          {"protocol", "agentclient"},
	"tui":           {"turn", "vmm", "agentclient", "controlclient", "protocol"},
	"cmd":           {"tui", "turn", "vmm", "fusefs", "agentclient", "controlclient", "protocol"},
}

func TestArrowsGoDownOnly(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "msb/...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	packages := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; packages++ {
		var p struct {
			ImportPath                         string
			Imports, TestImports, XTestImports []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		folder := topFolder(p.ImportPath)
		allowed, known := arrows[folder]
		if !known {
			t.Errorf("%s: folder %s is not in the table: a new one needs a reason in docs/architecture.md", p.ImportPath, folder)
			continue
		}
		for _, imp := range p.Imports {
			if to := topFolder(imp); to != "" && to != folder && !contains(allowed, to) {
				t.Errorf("%s imports %s: %s may not import %s", p.ImportPath, imp, folder, to)
			}
		}
		// Tests may bring both ends of the wire together, but a lower folder's tests never need the command line.
		for _, imp := range append(p.TestImports, p.XTestImports...) {
			if topFolder(imp) == "cmd" && folder != "cmd" {
				t.Errorf("the tests of %s import %s", p.ImportPath, imp)
			}
		}
	}
	if packages < 10 {
		t.Errorf("only %d packages found", packages)
	}
}

// topFolder is the folder of a package of this module, "" for any other.
func topFolder(path string) string {
	rest, ok := strings.CutPrefix(path, "msb/")
	if !ok {
		return ""
	}
	folder, _, _ := strings.Cut(rest, "/")
	return folder
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}
