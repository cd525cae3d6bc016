package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/vmm/image"
)

func newImageBuildCmd(app *app) *cobra.Command {
	var ifMissing, quiet bool
	var engine string
	cmd := &cobra.Command{
		Use:   "build [NAME]",
		Short: "Build a built-in image: " + strings.Join(image.Builtin(), " or "),
		Long: `Build a built-in image (default debian), anew if there is one already: sandboxes that lie on
the old one keep it. The kernel is fetched too when there is none yet.`,
		Example:   "  msb image build\n  msb image build tiny --if-missing",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: image.Builtin(),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			name := image.Default
			if len(args) > 0 {
				name = args[0]
			}
			if !slices.Contains(image.Builtin(), name) {
				return &usageError{fmt.Errorf("no image %q is built in: there are %s; `msb image import` takes any other", name, strings.Join(image.Builtin(), " and "))}
			}
			lib, err := app.library()
			if err != nil {
				return err
			}
			steps := app.steps(quiet)
			if ifMissing {
				img, err := lib.Get(name)
				if err == nil && app.verify(ctx, lib, img, steps) == nil {
					steps.Line("image", "%s: there already   sha256 %.4s…", img.Name, img.SHA256)
					if engine == "process" {
						return nil
					}
					return app.ensureKernel(ctx, lib, steps)
				}
			}
			_, err = app.buildImage(ctx, lib, name, engine, steps)
			return err
		}),
	}
	cmd.Flags().BoolVar(&ifMissing, "if-missing", false, "only if it is not there yet")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	engineFlag(cmd, &engine)
	return cmd
}

func engineFlag(cmd *cobra.Command, engine *string) {
	cmd.Flags().StringVar(engine, "engine", "qemu", "engine that unpacks it, away from this host's files: qemu or process")
	_ = cmd.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions([]string{"qemu", "process"}, cobra.ShellCompDirectiveNoFileComp))
}

func newImageImportCmd(app *app) *cobra.Command {
	var name, engine string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Make an image from a tar of a root file system",
		Long: `Make an image from a tar of a root file system, such as docker export writes; gzip, xz and
zstd are understood. "-" is standard input. It is unpacked inside a virtual machine, never on
this host.`,
		Example: "  docker export box | msb image import - -n box\n  msb image import rootfs.tar.xz",
		Args:    cobra.ExactArgs(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			in, source, err := app.importSource(ctx, args[0], &name)
			if err != nil {
				return err
			}
			defer in.Close()
			lib, err := app.library()
			if err != nil {
				return err
			}
			steps := app.steps(quiet)
			o, err := app.imageOptions(ctx, lib, engine, steps)
			if err != nil {
				return err
			}
			step := steps.Start("image", "%s: importing", name)
			defer step.Drop()
			o.Progress = stepProgress(step, name)
			img, err := lib.Import(ctx, name, source, in, o)
			if err != nil {
				return err
			}
			step.Done("%s: imported, %s   sha256 %.4s…", name, progress.Bytes(img.Size), img.SHA256)
			if h, err := app.home(); err == nil {
				pruneImages(lib, h)
			}
			return nil
		}),
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "name of the image (default: the file's name)")
	cmd.Flags().StringVarP(&name, "tag", "t", "", "the same as --name")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	engineFlag(cmd, &engine)
	return cmd
}

// importSource opens what is imported and finds a name for it.
func (a *app) importSource(ctx context.Context, arg string, name *string) (io.ReadCloser, string, error) {
	if arg == "-" {
		if *name == "" {
			return nil, "", &usageError{errors.New("an image from standard input needs a name: -n NAME")}
		}
		if a.io.InTTY() {
			return nil, "", &usageError{errors.New("standard input is a terminal: pipe a tar into it")}
		}
		in, err := a.io.Input()
		if err != nil {
			return nil, "", err
		}
		stop := context.AfterFunc(ctx, in.Stop)
		return closing{in, func() { stop(); in.Close() }}, "standard input", nil
	}
	if *name == "" {
		*name = filepath.Base(arg)
		for _, ext := range []string{".gz", ".xz", ".zst", ".tgz", ".txz", ".tar"} {
			*name = strings.TrimSuffix(*name, ext)
		}
	}
	f, err := os.Open(arg)
	if err != nil {
		return nil, "", err
	}
	return f, filepath.Base(arg), nil
}

// closing is a reader with a close function.
type closing struct {
	io.Reader
	close func()
}

func (c closing) Close() error { c.close(); return nil }

// buildImage builds a built-in image and shows how it goes.
func (a *app) buildImage(ctx context.Context, lib *image.Library, name, engine string, steps *progress.Steps) (image.Image, error) {
	o, err := a.imageOptions(ctx, lib, engine, steps)
	if err != nil {
		return image.Image{}, err
	}
	step := steps.Start("image", "%s: building", name)
	defer step.Drop()
	o.Progress = stepProgress(step, name)
	img, err := lib.Build(ctx, name, o)
	if err != nil {
		return img, err
	}
	step.Done("%s: built, %s   sha256 %.4s…", name, progress.Bytes(img.Size), img.SHA256)
	if h, err := a.home(); err == nil {
		pruneImages(lib, h)
	}
	return img, nil
}

// imageOptions is what building and importing need: a machine to unpack in, and so a kernel.
func (a *app) imageOptions(ctx context.Context, lib *image.Library, engine string, steps *progress.Steps) (image.Options, error) {
	guest, err := a.guest()
	if err != nil {
		return image.Options{}, err
	}
	if engine != "process" {
		if err := a.ensureKernel(ctx, lib, steps); err != nil {
			return image.Options{}, err
		}
	}
	unpack, err := a.unpacker(engine, guest)
	return image.Options{Unpack: unpack}, err
}

// ensureKernel fetches the kernel when there is none.
func (a *app) ensureKernel(ctx context.Context, lib *image.Library, steps *progress.Steps) error {
	_, err := lib.Kernel()
	if !errors.Is(err, image.ErrNoKernel) {
		return err
	}
	step := steps.Start("kernel", "fetching")
	defer step.Drop()
	k, err := lib.FetchKernel(ctx, stepProgress(step, "linux"))
	if err != nil {
		return fmt.Errorf("get a kernel for the sandboxes: %w", err)
	}
	step.Done("linux %s", k.Version)
	return nil
}
