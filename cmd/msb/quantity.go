package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"msb/protocol/agent"
)

// bytesValue is a flag with a size of at least least bytes. A number without a unit is in MiB, as for memory.
type bytesValue struct {
	n     *int64
	least int64
}

func (v bytesValue) String() string {
	if v.n == nil || *v.n == 0 {
		return ""
	}
	return formatSize(*v.n)
}
func (v bytesValue) Type() string { return "SIZE" }
func (v bytesValue) Set(s string) error {
	n, err := parseSize(s)
	if err != nil {
		return err
	}
	if n < v.least {
		return fmt.Errorf("%s is too little: at least %s", s, formatSize(v.least))
	}
	*v.n = n
	return nil
}

// cpusValue is a flag with a number of CPUs, 1 or more. Zero, which stands for the default, cannot be asked for.
type cpusValue struct{ n *int }

func (v cpusValue) String() string {
	if v.n == nil || *v.n == 0 {
		return ""
	}
	return strconv.Itoa(*v.n)
}
func (v cpusValue) Type() string { return "int" }
func (v cpusValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("%q is not a number of CPUs", s)
	}
	if n < 1 {
		return errors.New("at least 1 CPU")
	}
	*v.n = n
	return nil
}

// nameValue is a flag with a sandbox's name. Empty, which stands for a generated one, cannot be asked for.
type nameValue struct{ name *string }

func (v nameValue) String() string {
	if v.name == nil {
		return ""
	}
	return *v.name
}
func (v nameValue) Type() string { return "string" }
func (v nameValue) Set(s string) error {
	if s == "" {
		return errors.New("a name cannot be empty; leave the flag out for a new one")
	}
	*v.name = s
	return nil
}

// mebibytesValue is a flag with a size that is kept in MiB.
type mebibytesValue struct{ n *int }

func (v mebibytesValue) String() string {
	if v.n == nil || *v.n == 0 {
		return ""
	}
	return formatSize(int64(*v.n) << 20)
}
func (v mebibytesValue) Type() string { return "SIZE" }
func (v mebibytesValue) Set(s string) error {
	n, err := parseSize(s)
	if err != nil {
		return err
	}
	if n>>20 == 0 {
		return fmt.Errorf("%s is less than 1 MiB", s)
	}
	if n>>20 > math.MaxInt32 {
		return fmt.Errorf("%s is more than any machine has", s)
	}
	*v.n = int(n >> 20)
	return nil
}

var sizeUnits = []struct {
	suffix string
	shift  uint
}{{"T", 40}, {"G", 30}, {"M", 20}, {"K", 10}}

// parseSize reads "512M", "1.5G", "16GiB" or a bare number of MiB.
func parseSize(s string) (int64, error) {
	text := strings.ToUpper(strings.TrimSpace(s))
	shift := uint(20)
	if t := strings.TrimSuffix(strings.TrimSuffix(text, "B"), "I"); t != text || strings.TrimRight(text, "TGMK") != text {
		shift = 0
		for _, u := range sizeUnits {
			if rest, ok := strings.CutSuffix(t, u.suffix); ok {
				t, shift = rest, u.shift
				break
			}
		}
		text = t
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || math.IsNaN(f) || strings.ContainsAny(text, "XPE_IN") {
		return 0, fmt.Errorf("size %q is not understood: use something like 512M or 16G (a bare number is MiB)", s)
	}
	v := f * float64(int64(1)<<shift)
	if v >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is too big", s)
	}
	return int64(v), nil
}

func formatSize(n int64) string {
	for _, u := range sizeUnits {
		if n >= 1<<u.shift && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// durationValue is a flag with a duration; a bare number is seconds.
type durationValue struct{ d *time.Duration }

func (v durationValue) String() string {
	if v.d == nil || *v.d == 0 {
		return ""
	}
	return v.d.String()
}
func (v durationValue) Type() string { return "DURATION" }
func (v durationValue) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		n, nerr := strconv.ParseUint(s, 10, 31)
		if nerr != nil {
			return fmt.Errorf("duration %q is not understood: use something like 30s, 5m or 1h30m", s)
		}
		d = time.Duration(n) * time.Second
	}
	if d < 0 {
		return fmt.Errorf("duration %q is negative", s)
	}
	*v.d = d
	return nil
}

var rlimitNames = []string{"cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile", "memlock", "as", "locks",
	"sigpending", "msgqueue", "nice", "rtprio", "rttime"}

// parseRlimits reads NAME=SOFT[:HARD] entries.
func parseRlimits(specs []string) ([]agent.Rlimit, error) {
	var limits []agent.Rlimit
	for _, s := range specs {
		name, value, ok := strings.Cut(s, "=")
		soft, hard, two := strings.Cut(value, ":")
		if !two {
			hard = soft
		}
		l := agent.Rlimit{Resource: strings.ToLower(strings.TrimPrefix(strings.ToLower(name), "rlimit_"))}
		known := false
		for _, n := range rlimitNames {
			known = known || n == l.Resource
		}
		var err1, err2 error
		l.Soft, err1 = parseLimit(soft)
		l.Hard, err2 = parseLimit(hard)
		switch {
		case !ok || err1 != nil || err2 != nil:
			return nil, fmt.Errorf("--rlimit %q is not understood: use NAME=SOFT or NAME=SOFT:HARD, such as nofile=1024", s)
		case !known:
			return nil, fmt.Errorf("--rlimit %q: no limit is called that; there are %s", s, strings.Join(rlimitNames, ", "))
		case l.Soft > l.Hard:
			return nil, fmt.Errorf("--rlimit %q: the soft limit is above the hard one", s)
		}
		limits = append(limits, l)
	}
	return limits, nil
}

func parseLimit(s string) (uint64, error) {
	if s == "unlimited" || s == "-1" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

// checkEnv checks K=V entries; a bare K takes the value of our own environment.
func (a *app) checkEnv(env []string) ([]string, error) {
	out := make([]string, 0, len(env))
	for _, e := range env {
		k, _, ok := strings.Cut(e, "=")
		if k == "" || strings.IndexByte(e, 0) >= 0 {
			return nil, fmt.Errorf("-e %q is not understood: use NAME=VALUE", e)
		}
		if !ok {
			e = k + "=" + a.io.Env(k)
		}
		out = append(out, e)
	}
	return out, nil
}

// checkText refuses words that the agent protocol, whose text is UTF-8, cannot carry.
func checkText(words []string) error {
	for _, w := range words {
		if !utf8.ValidString(w) {
			return fmt.Errorf("%q is not UTF-8, and a sandbox can be told nothing else; `msb exec NAME -- sh` takes any bytes on standard input", w)
		}
	}
	return nil
}

// parseLabels reads KEY[=VALUE] entries.
func parseLabels(specs []string) (map[string]string, error) {
	if len(specs) == 0 {
		return nil, nil
	}
	labels := make(map[string]string, len(specs))
	for _, s := range specs {
		k, v, _ := strings.Cut(s, "=")
		if k == "" {
			return nil, fmt.Errorf("--label %q is not understood: use KEY or KEY=VALUE", s)
		}
		labels[k] = v
	}
	return labels, nil
}

// hasLabels says whether a sandbox has all that were asked for; a key alone matches any value.
func hasLabels(have map[string]string, want []string) bool {
	for _, w := range want {
		k, v, valued := strings.Cut(w, "=")
		got, ok := have[k]
		if !ok || valued && got != v {
			return false
		}
	}
	return true
}
