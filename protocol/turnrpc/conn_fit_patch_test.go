package turnrpc

import (
	"encoding/json"
	"strings"
	"testing"
)

// A patch that is too large loses whole files, and says which.
func TestPatchIsCutBetweenFiles(t *testing.T) {
	file := func(name string, lines int) string {
		return "diff --git a/" + name + " b/" + name + "\n--- a/" + name + "\n+++ b/" + name + "\n@@ -0,0 +1 @@\n" + strings.Repeat("+<x> diff --git\n", lines)
	}
	small, big, last := file("small", 1), file("big", 100_000), file("last", 2)
	b, err := FitResult(PatchResult{Patch: small + big + last, Summary: "3 files"}, MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	var got PatchResult
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.Patch != small+last {
		t.Errorf("%d bytes are left, want %d", len(got.Patch), len(small+last))
	}
	if !strings.HasPrefix(got.Summary, "3 files") || !strings.Contains(got.Summary, "1 files]\n  a/big b/big\n") {
		t.Errorf("summary: %s", got.Summary)
	}
	if whole := WholeFiles(small + big + last[:14]); whole != small+big {
		t.Errorf("%d bytes are whole, want %d", len(whole), len(small+big))
	}
	if WholeFiles("") != "" || WholeFiles("diff --git a") != "" {
		t.Error("half a file counts as whole")
	}
	if files := patchFiles(small + big + last); len(files) != 3 || strings.Join(files, "") != small+big+last {
		t.Errorf("%d files", len(files))
	}
}
