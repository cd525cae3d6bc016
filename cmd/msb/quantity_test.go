package main

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"512": 512 << 20, "512M": 512 << 20, "512MiB": 512 << 20, "512mb": 512 << 20, "1.5G": 3 << 29, "16GiB": 16 << 30,
		"64K": 64 << 10, "2T": 2 << 40, "0": 0, "100B": 100,
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "M", "-1", "-1G", "1X", "0x10", "1e3", "nan", "inf", "99999999999T", "1 2", "1GG"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("%q: accepted as %d", in, got)
		}
	}
}

func TestDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{"30": 30 * time.Second, "1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond} {
		var d time.Duration
		if err := (durationValue{&d}).Set(in); err != nil || d != want {
			t.Errorf("%s: %v, %v", in, d, err)
		}
	}
	for _, in := range []string{"", "-1s", "-5", "soon", "99999999999999"} {
		var d time.Duration
		if err := (durationValue{&d}).Set(in); err == nil {
			t.Errorf("%q: accepted as %v", in, d)
		}
	}
}

func TestRlimits(t *testing.T) {
	got, err := parseRlimits([]string{"nofile=1024", "RLIMIT_CPU=1:unlimited"})
	if err != nil || len(got) != 2 || got[0].Resource != "nofile" || got[0].Hard != 1024 || got[1].Resource != "cpu" || got[1].Hard != math.MaxUint64 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, in := range []string{"nofile", "nofile=", "nofile=2:1", "files=1", "=1", "nofile=-5"} {
		if got, err := parseRlimits([]string{in}); err == nil {
			t.Errorf("%q: accepted as %+v", in, got)
		}
	}
}

func TestCheckText(t *testing.T) {
	if err := checkText([]string{"", "a b", "\u65e5\u672c", "\x1b\n"}); err != nil {
		t.Error(err)
	}
	if err := checkText([]string{"ls", "bad\xffname"}); err == nil || !strings.Contains(err.Error(), `"bad\xffname" is not UTF-8`) {
		t.Errorf("error %v", err)
	}
}
