package enginetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"msb/vmm/image"
	"msb/vmm/store"
)

// VM says whether tests with virtual machines are asked for: they are with MSB_TEST_VM set, and then a missing part
// fails them. Without it they skip when a part is missing.
func VM() bool { return os.Getenv("MSB_TEST_VM") != "" }

// Missing skips the test, or fails it when VM tests are asked for.
func Missing(t testing.TB, what string, err error) {
	t.Helper()
	if VM() {
		t.Fatalf("%s: %v", what, err)
	}
	t.Skipf("skipped, since %s: %v", what, err)
}

// Kernel gives the kernel of the user's own library (fetched when VM tests are asked for) and an initramfs with guest
// as its init.
func Kernel(t testing.TB, guest string) (kernel, initrd string) {
	t.Helper()
	if testing.Short() && !VM() {
		t.Skip("skipped, since -short is given: boots a virtual machine")
	}
	lib, err := library()
	if err != nil {
		Missing(t, "there is no library of kernels", err)
	}
	ctx := context.Background()
	k, err := lib.Kernel()
	if err != nil && VM() {
		k, err = lib.FetchKernel(ctx, nil)
	}
	if err != nil {
		Missing(t, "there is no kernel (fetch one with: msb image build tiny)", err)
	}
	// The initramfs goes to a library of the test's own, so that nothing of a test stays in the user's.
	own, err := image.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if initrd, err = own.Initramfs(ctx, k, guest); err != nil {
		t.Fatalf("make the initramfs: %v", err)
	}
	return k.Boot, initrd
}

// library is the one of the home, or the directory MSB_TEST_LIBRARY.
func library() (*image.Library, error) {
	if dir := os.Getenv("MSB_TEST_LIBRARY"); dir != "" {
		return image.Open(dir)
	}
	h, err := store.Open()
	if err != nil {
		return nil, err
	}
	return image.Open(h.Root)
}

// Base makes a raw disk image of size bytes that begins with content and is a hole from there on.
func Base(t testing.TB, content string, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "base.raw")
	if err := os.WriteFile(path, []byte(content), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}
