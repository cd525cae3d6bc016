package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker for releases.
var version = ""

func newVersionCmd(app *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of msb",
		Example: "  msb version",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(app.io.Out, versionLine())
			return err
		},
	}
}

// versionLine is "msb VERSION (REVISION, GO, OS/ARCH)".
func versionLine() string {
	v, rev := version, ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				rev = s.Value[:12] + ", "
			}
		}
	}
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	return fmt.Sprintf("msb %s (%s%s, %s/%s)", v, rev, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
