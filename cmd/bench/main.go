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
	flag.IntVar(&b.rounds, "rounds", 5, "rounds of each measurement; medians are printed")
	flag.Int64Var(&b.size, "size", 256, "MiB to read and to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("%s, %d CPUs, kernel %s\n", cpuModel(), runtime.NumCPU(), kernelRelease())
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
