package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"msb/cmd/msb/progress"
	"msb/vmm"
	"msb/vmm/image"
	"msb/vmm/store"
)

func newImageCmd(app *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "Build, import, list and remove root images",
		Example: "  msb image build tiny\n  docker export box | msb image import - -n box\n  msb image ls",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImageBuildCmd(app), newImageImportCmd(app), newImageLsCmd(app), newImageRmCmd(app), newImageInspectCmd(app))
	return cmd
}

func newImageLsCmd(app *app) *cobra.Command {
	var list listing
	cmd := &cobra.Command{
		Use:               "ls",
		Aliases:           []string{"list"},
		Short:             "List images",
		Example:           "  msb image ls\n  msb image ls --json",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			asJSON, err := list.asJSON()
			if err != nil {
				return err
			}
			lib, err := app.library()
			if err != nil {
				return err
			}
			images, err := lib.List()
			if err != nil {
				return err
			}
			if asJSON {
				if images == nil {
					images = []image.Image{}
				}
				return writeJSON(app.io.Out, images)
			}
			rows := make([][]string, len(images))
			for i, img := range images {
				if list.quiet {
					if _, err := fmt.Fprintln(app.io.Out, img.Name); err != nil {
						return err
					}
				}
				rows[i] = []string{img.Name, fmt.Sprintf("%.12s", img.SHA256), progress.Bytes(img.Size), orDash(img.OS), img.Source, age(img.Created)}
			}
			if list.quiet {
				return nil
			}
			return writeTable(app.io.Out, []string{"NAME", "SHA256", "SIZE", "OS", "SOURCE", "CREATED"}, rows)
		},
	}
	list.flags(cmd, "names only")
	return cmd
}

func newImageInspectCmd(app *app) *cobra.Command {
	var list listing
	cmd := &cobra.Command{
		Use:               "inspect IMAGE",
		Short:             "Show one image, after checking its checksum",
		Example:           "  msb image inspect debian --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: app.completeImages,
		RunE: interruptible(func(ctx context.Context, args []string) error {
			asJSON, err := list.asJSON()
			if err != nil {
				return err
			}
			lib, err := app.library()
			if err != nil {
				return err
			}
			img, err := lib.Get(args[0])
			if err != nil {
				return err
			}
			if err := app.verify(ctx, lib, img, app.steps(!app.io.ErrTTY())); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(app.io.Out, img)
			}
			return writeTable(app.io.Out, []string{"name", img.Name}, [][]string{{"sha256", img.SHA256}, {"size", progress.Bytes(img.Size)},
				{"os", orDash(img.OS)}, {"source", img.Source}, {"created", img.Created.Local().Format(time.DateTime)}, {"file", img.Path}})
		}),
	}
	list.flags(cmd, "")
	return cmd
}

func newImageRmCmd(app *app) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"remove"},
		Short:   "Remove images that no sandbox uses",
		Example: "  msb image rm box",
		Args:    cobra.MinimumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			names := slices.DeleteFunc(app.imageNames(begin), func(n string) bool { return slices.Contains(args, n) })
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: interruptible(func(ctx context.Context, args []string) error {
			lib, err := app.library()
			if err != nil {
				return err
			}
			h, err := app.home()
			if err != nil {
				return err
			}
			inUse := imageUsers(h)
			var failed []error
			for _, name := range args {
				if err := lib.Remove(ctx, name, inUse); err != nil {
					failed = append(failed, err)
				} else if !quiet {
					app.steps(false).Line("image", "%s: removed", name)
				}
			}
			pruneImages(lib, h)
			return errors.Join(failed...)
		}),
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing but errors")
	return cmd
}

// imageUsers tells which sandboxes lie on the image file with a checksum. One whose config cannot be read may.
func imageUsers(h *store.Home) func(sum string) ([]string, error) {
	return func(sum string) ([]string, error) {
		names, err := h.List()
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(names, func(n string) bool {
			c, err := h.Load(n)
			return err == nil && c.ImageSHA256 != sum || errors.Is(err, store.ErrNotFound)
		}), nil
	}
}

// pruneImages removes the files of images that were made anew, once no sandbox lies on them. What it cannot do now the
// next one does.
func pruneImages(lib *image.Library, h *store.Home) { _, _ = lib.Prune(imageUsers(h)) }

func (a *app) imageNames(begin string) []string {
	var names []string
	if lib, err := a.library(); err == nil {
		if images, err := lib.List(); err == nil {
			for _, img := range images {
				names = append(names, img.Name)
			}
		}
	}
	for _, n := range image.Builtin() {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, begin) })
}

func (a *app) verify(ctx context.Context, lib *image.Library, img image.Image, steps *progress.Steps) error {
	step := steps.Start("image", "%s: checking", img.Name)
	defer step.Drop()
	err := lib.Verify(ctx, img, stepProgress(step, img.Name))
	if errors.Is(err, image.ErrCorrupt) {
		return fmt.Errorf("image %s: %w; %s", img.Name, err, rebuildHint(img.Name))
	}
	return err
}

// rebuildHint says how to get a sound copy of an image.
func rebuildHint(name string) string {
	if slices.Contains(image.Builtin(), name) {
		return "build it again: msb image build " + name
	}
	return "import it again: msb image import FILE -n " + name
}

func stepProgress(step *progress.Step, name string) image.Progress {
	return func(stage string, fraction float64) { step.Update(name+": "+stage, fraction) }
}

// ensureImage sees that the image and the kernel of a new sandbox are there and sound, building what msb can build.
func (a *app) ensureImage(ctx context.Context, o vmm.CreateOptions, steps *progress.Steps) error {
	lib, err := a.library()
	if err != nil {
		return err
	}
	img, err := lib.Get(o.Image)
	if errors.Is(err, image.ErrNotFound) && slices.Contains(image.Builtin(), o.Image) {
		if img, err = a.buildImage(ctx, lib, o.Image, o.Engine, steps); err == nil {
			return nil
		}
	}
	if err != nil {
		return err
	}
	if err := a.verify(ctx, lib, img, steps); err != nil {
		return err
	}
	if o.Engine != "process" && o.Kernel == "" {
		return a.ensureKernel(ctx, lib, steps)
	}
	return nil
}
