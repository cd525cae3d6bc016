package store

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// StockAgentSocket finds the agent socket of a sandbox of a stock microsandbox installation by its name, current layout
// first. ErrNotFound when there is none. Nothing is ever written there, and any name will do: only its hash is looked
// for.
func StockAgentSocket(name string) (string, error) {
	for _, home := range stockHomes() {
		run := filepath.Join(home, "run")
		for _, path := range []string{
			filepath.Join(run, "sandboxes", nameHash(name, 12), "agent.sock"),
			filepath.Join(run, "agent", nameHash(name, 16)+".sock"),
		} {
			if st, err := os.Stat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%w: %q", ErrNotFound, name)
}

// stockHomes are where a stock installation may keep its sandboxes: MSB_HOME, which it has in common with us, and its
// default.
func stockHomes() []string {
	var homes []string
	if dir, err := filepath.Abs(os.Getenv("MSB_HOME")); err == nil && isStockHome(os.Getenv("MSB_HOME")) {
		homes = append(homes, dir)
	}
	if home, err := os.UserHomeDir(); err == nil {
		homes = append(homes, filepath.Join(home, ".microsandbox"))
	}
	return homes
}

// isStockHome tells whether dir belongs to a stock installation, which has a database there.
func isStockHome(dir string) bool {
	if dir == "" {
		return false
	}
	st, err := os.Stat(filepath.Join(dir, "db", "msb.db"))
	return err == nil && st.Mode().IsRegular()
}
