// Command bench measures msb against the limits of the machine it runs on, in
// one run, and prints ratios: booting beside a machine whose init only powers
// off, data beside a plain byte pump over the same port, and a command beside
// the port's round trip. `make bench` runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

func main() {
	var b bench
	flag.StringVar(&b.msb, "msb", "bin/msb", "the msb to measure")
	flag.StringVar(&b.image, "image", "tiny", "image of the sandboxes")
	flag.IntVar(&b.rounds, "rounds", 5, "rounds of each measurement; medians are printed, with -mount the best")
	flag.Int64Var(&b.size, "size", 256, "MiB to read and to write")
	loopback := flag.Bool("loopback", false, "serve the directory that is the second argument at the first")
	mount := flag.Bool("mount", false, "measure the mount against other file systems instead (as root)")
	flag.StringVar(&b.tree, "tree", "", "with -mount: a source tree to work on; default: a part of the Go distribution's")
	flag.IntVar(&b.entries, "entries", 20000, "with -mount: entries of the large directory")
	flag.Parse()
	if *loopback {
		if err := serveLoopback(flag.Arg(0), flag.Arg(1)); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("%s, %d CPUs, kernel %s\n", cpuModel(), runtime.NumCPU(), kernelRelease())
	run := b.run
	if *mount {
		run = b.mounts
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
