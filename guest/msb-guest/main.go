// Command msb-guest is all that runs of msb inside a sandbox: the first process of a virtual machine, the sandbox of
// the process engine, the program that unpacks images, and the agent of a turn session.
package main

import (
	"fmt"
	"os"

	"msb/guest/agent"
	"msb/guest/boot"
	"msb/guest/exec"
	"msb/guest/turn/warden"
	"msb/guest/worktree"
)

func main() {
	exec.LimitedMain()
	warden.Children()
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch {
	case mode == "ns":
		os.Exit(boot.Namespace(os.Args[2:]))
	case mode == "unpack":
		os.Exit(boot.Unpack(os.Args[2:]))
	case mode == "worktree":
		os.Exit(worktree.Main(os.Args[2:]))
	case mode == "turn":
		os.Exit(warden.Main(os.Args[2:]))
	case mode == "version":
		fmt.Println("msb-guest", agent.Version)
	case os.Getpid() == 1:
		boot.PID1()
	default:
		fmt.Fprintln(os.Stderr, "msb-guest runs inside a sandbox: as PID 1, or with ns, unpack, worktree, turn or version")
		os.Exit(2)
	}
}
