// Command msb makes, runs and opens sandboxes: Linux virtual machines with a shell, a mount and an agent inside.
package main

import (
	"os"

	"msb/cmd/msb/terminal"
)

func main() {
	os.Exit(execute(mountHelper(os.Args), terminal.System()))
}
