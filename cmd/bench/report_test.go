package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestRows(t *testing.T) {
	for _, tc := range []struct {
		name string
		got  row
		want row
	}{
		{"twice as long", timeRow("boot", 2*time.Second, time.Second, "≤ 1.5"), row{"boot", "2s", "1s", 2, "≤ 1.5"}},
		{"times are rounded", timeRow("exec", 1234567*time.Nanosecond, 1234567*time.Nanosecond, ""), row{"exec", "1.23ms", "1.23ms", 1, ""}},
		{"half the rate", rateRow("read", 100e6, 2*time.Second, time.Second, "≥ 0.8"), row{"read", "50.0 MB/s", "100.0 MB/s", 0.5, "≥ 0.8"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("%+v, want %+v", tc.got, tc.want)
			}
		})
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		in   []time.Duration
		want time.Duration
	}{{[]time.Duration{7}, 7}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{100, 2, 1, 3, 2}, 2}} {
		before := slices.Clone(tc.in)
		if got := median(tc.in); got != tc.want || !slices.Equal(tc.in, before) {
			t.Errorf("%v: %v, want %v; the rounds are now %v", before, got, tc.want, tc.in)
		}
	}
}

// A measurement of a file that is not what it should be fails instead of being fast.
func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	const size = 256 << 10
	if err := writeFile(path, size, 64<<10); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != size {
		t.Errorf("%d bytes were written, %v", info.Size(), err)
	}
	if err := readFile(path); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := readRandom(path, size, 64); err != nil {
		t.Errorf("read at random: %v", err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := readRandom(path, size, 64); err == nil {
		t.Error("random reads of an empty file succeed")
	}
	if err := readFile(path + "x"); err == nil {
		t.Error("a file that is not there was read")
	}
	if err := readFile(filepath.Dir(path)); err == nil {
		t.Error("a directory was read")
	}
}
