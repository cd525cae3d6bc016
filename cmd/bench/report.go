package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// row is one line of the table. ratio is ours against the baseline, 0 for
// none; for times less is better, for rates more.
type row struct {
	what, ours, baseline string
	ratio                float64
	aim                  string
}

func printTable(rows []row) {
	fmt.Printf("\n%-36s %14s %14s %8s  %s\n", "", "msb", "baseline", "ratio", "aim")
	for _, r := range rows {
		ratio := ""
		if r.ratio > 0 {
			ratio = fmt.Sprintf("%.2f", r.ratio)
		}
		fmt.Printf("%-36s %14s %14s %8s  %s\n", r.what, r.ours, r.baseline, ratio, r.aim)
	}
}

func timeRow(what string, ours, baseline time.Duration, aim string) row {
	return row{what, ours.Round(10 * time.Microsecond).String(), baseline.Round(10 * time.Microsecond).String(), float64(ours) / float64(baseline), aim}
}

// rateRow turns the times for size bytes into rates.
func rateRow(what string, size int64, ours, baseline time.Duration, aim string) row {
	rate := func(d time.Duration) string {
		return fmt.Sprintf("%.1f MB/s", float64(size)/1e6/d.Seconds())
	}
	return row{what, rate(ours), rate(baseline), float64(baseline) / float64(ours), aim}
}

func median(d []time.Duration) time.Duration { return percentile(d, 50) }

func percentile(d []time.Duration, n int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)*n/100]
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if name, ok := strings.CutPrefix(sc.Text(), "model name"); ok {
			return strings.TrimLeft(name, "\t :")
		}
	}
	return "unknown CPU"
}

func kernelRelease() string {
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		return "unknown"
	}
	b := make([]byte, 0, len(u.Release))
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
