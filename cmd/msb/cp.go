package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"msb/agentclient"
	"msb/cmd/msb/progress"
	"msb/cmd/msb/transfer"
	"msb/protocol/agent"
)

// cpOptions are what cp was asked to do.
type cpOptions struct {
	socket string
	follow bool
	quiet  bool
}

func newCpCmd(app *app) *cobra.Command {
	var o cpOptions
	cmd := &cobra.Command{
		Use:     "cp SRC DST",
		Aliases: []string{"copy"},
		Short:   "Copy files to, from and between sandboxes",
		Long: `Copy a file or a directory tree. Either side, or both, is NAME:/path; with --socket PATH it is
:/path. Modes, times, symlinks and holes are kept. DST is taken as a directory when it is one or ends
in a slash, and gets SRC in it; SRC/. stands for what is in SRC. "-" is standard input or
output, for one file.

What a guest says is not trusted: nothing is written outside DST, its symlinks are never
followed on this host, and set-user-id bits are dropped.`,
		Example: `  msb cp ./src demo:/home/dev
  msb cp demo:/work/repo/. ./result
  msb cp demo:/etc/os-release -
  pg_dump db | msb cp - demo:/home/dev/db.sql
  msb cp one:/data two:/data`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
			if strings.ContainsAny(begin, "/.") {
				return nil, cobra.ShellCompDirectiveDefault
			}
			names := app.names(begin, nil)
			for i := range names {
				names[i] += ":/"
			}
			return names, cobra.ShellCompDirectiveNoSpace
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return interruptible(func(ctx context.Context, args []string) error {
				c := &copying{app: app, opt: o, clients: map[string]*agentclient.Client{}}
				defer c.close()
				return c.run(ctx, args[0], args[1])
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&o.socket, "socket", "", "agent socket of the sandbox that :/path stands for")
	cmd.Flags().BoolVarP(&o.follow, "follow-link", "L", false, "copy what SRC links to, if SRC itself is a symlink")
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "no progress")
	return cmd
}

// place is one side of a copy.
type place struct {
	fs    *agentclient.FS // nil: the host
	path  string
	shown string
	std   bool // "-"
}

// copying is one cp command and the connections it uses.
type copying struct {
	app     *app
	opt     cpOptions
	clients map[string]*agentclient.Client
}

func (c *copying) close() {
	for _, cl := range c.clients {
		cl.Close()
	}
}

// place finds out what the user means by arg.
func (c *copying) place(ctx context.Context, arg string) (place, error) {
	name, p, remote := strings.Cut(arg, ":")
	switch {
	case arg == "-":
		return place{shown: "-", std: true}, nil
	case arg == "":
		return place{}, &usageError{errors.New("a path is empty")}
	case !remote || strings.ContainsAny(name, "/.") && !validRemote(name) || name == "" && c.opt.socket == "":
		return place{path: arg, shown: arg}, nil
	}
	socket := ""
	if name == "" {
		socket = c.opt.socket
	}
	t, err := c.app.target(name, socket)
	if err != nil {
		return place{}, fmt.Errorf("%s: %w (write ./%s for a file of this host)", arg, err, arg)
	}
	cl := c.clients[t.socket]
	if cl == nil {
		if cl, err = t.dial(ctx); err != nil {
			return place{}, err
		}
		c.clients[t.socket] = cl
	}
	if p == "" {
		p = "."
	}
	if !path.IsAbs(p) {
		return place{}, &usageError{fmt.Errorf("%s: the path in a sandbox must begin with a slash", arg)}
	}
	return place{fs: cl.FS(), path: p, shown: arg}, nil
}

// validRemote says whether name could be a sandbox although it has a dot in it.
func validRemote(name string) bool {
	return !strings.ContainsAny(name, "/") && name[0] != '.'
}

func (c *copying) run(ctx context.Context, from, to string) error {
	src, err := c.place(ctx, from)
	if err != nil {
		return err
	}
	dst, err := c.place(ctx, to)
	if err != nil {
		return err
	}
	switch {
	case src.std && dst.std:
		return &usageError{errors.New("only one side can be \"-\"")}
	case src.std:
		return c.fromInput(ctx, dst)
	case dst.std:
		return c.toOutput(ctx, src)
	}
	source := src.source()
	info, err := source.Stat(ctx, src.path, c.opt.follow || strings.HasSuffix(src.path, "/"))
	if err != nil {
		return fmt.Errorf("%s: %w", src.shown, err)
	}
	if src.fs == nil && dst.fs == nil {
		return &usageError{fmt.Errorf("neither side is in a sandbox: write NAME:%s for one that is", to)}
	}
	meter := c.meter(src, dst, info)
	defer meter.end()
	copier := &transfer.Copier{From: source, Report: meter.report, Warn: meter.warn}

	if transfer.Contentful(src.path) && info.Mode.IsDir() {
		dir, finish, err := c.directory(ctx, dst, info)
		if err != nil {
			return fmt.Errorf("%s: %w", dst.shown, err)
		}
		err = copier.Contents(ctx, src.path, dir)
		return meter.done(errors.Join(err, finish()))
	}
	dir, name, err := c.destination(ctx, dst, source.Base(src.path))
	if err != nil {
		return fmt.Errorf("%s: %w", dst.shown, err)
	}
	info.Name = name
	err = copier.Copy(ctx, src.path, info, dir)
	return meter.done(errors.Join(err, dir.Finish(ctx, nil)))
}

func (p place) source() transfer.Source {
	if p.fs != nil {
		return transfer.GuestSource{FS: p.fs}
	}
	return transfer.HostSource{}
}

func (p place) open(ctx context.Context, dir string) (transfer.Dir, error) {
	if p.fs != nil {
		return transfer.OpenGuestDir(ctx, p.fs, dir)
	}
	return transfer.OpenHostDir(dir)
}

// destination opens the directory that gets the copy and says what the copy is called there.
func (c *copying) destination(ctx context.Context, dst place, base string) (transfer.Dir, string, error) {
	wantDir := strings.HasSuffix(dst.path, "/") || transfer.Contentful(dst.path)
	if trimmed := strings.TrimRight(dst.path, "/"); trimmed != "" {
		dst.path = trimmed // "not a directory" is for us to say
	}
	info, err := dst.source().Stat(ctx, dst.path, true)
	switch {
	case err == nil && info.Mode.IsDir():
		if base == "/" || base == "." {
			return nil, "", errors.New("the root directory has no name to be copied as: SRC/. copies what is in it")
		}
		dir, err := dst.open(ctx, dst.path)
		return dir, base, err
	case err == nil && wantDir:
		return nil, "", errors.New("is not a directory")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, "", err
	case err != nil && wantDir:
		return nil, "", errors.New("there is no such directory")
	}
	p := dst.path
	if dst.fs == nil {
		// A symlink that the user named is the user's own: the file behind it is meant.
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real
		}
		dir, err := dst.open(ctx, filepath.Dir(p))
		return dir, filepath.Base(p), err
	}
	dir, err := dst.open(ctx, path.Dir(path.Clean(p)))
	return dir, path.Base(path.Clean(p)), err
}

// directory opens dst itself, making it when it is missing, for the contents of a source directory.
func (c *copying) directory(ctx context.Context, dst place, info transfer.Info) (transfer.Dir, func() error, error) {
	if have, err := dst.source().Stat(ctx, dst.path, true); err == nil {
		if !have.Mode.IsDir() {
			return nil, nil, errors.New("is not a directory")
		}
		dir, err := dst.open(ctx, dst.path)
		return dir, func() error { return dir.Finish(ctx, nil) }, err
	}
	parent, name, err := c.destination(ctx, place{fs: dst.fs, path: strings.TrimRight(strings.TrimSuffix(dst.path, "/."), "/")}, "")
	if err != nil {
		return nil, nil, err
	}
	info.Name = name
	dir, err := parent.Enter(ctx, info)
	if err != nil {
		return nil, nil, errors.Join(err, parent.Finish(ctx, nil))
	}
	return dir, func() error { return errors.Join(dir.Finish(ctx, &info), parent.Finish(ctx, nil)) }, nil
}

// fromInput writes standard input into one file.
func (c *copying) fromInput(ctx context.Context, dst place) error {
	if dst.fs == nil {
		return &usageError{errors.New("neither side is in a sandbox")}
	}
	f, err := dst.fs.OpenFile(ctx, dst.path, agent.OpenOptions{Write: true, Create: true, Truncate: true})
	if err != nil {
		return fmt.Errorf("%s: %w", dst.shown, err)
	}
	in, err := c.app.io.Input()
	if err != nil {
		return errors.Join(err, f.Close(ctx))
	}
	defer in.Close()
	defer context.AfterFunc(ctx, in.Stop)()
	_, err = f.Upload(ctx, in, 0)
	if cerr := f.Close(context.WithoutCancel(ctx)); err == nil {
		err = cerr
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dst.shown, err)
	}
	return nil
}

// toOutput writes one file to standard output.
func (c *copying) toOutput(ctx context.Context, src place) error {
	if src.fs == nil {
		return &usageError{errors.New("neither side is in a sandbox")}
	}
	info, err := src.source().Stat(ctx, src.path, true)
	if err == nil && info.Mode.IsDir() {
		err = errors.New("is a directory: only a file can go to standard output")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", src.shown, err)
	}
	r, err := src.source().Open(ctx, src.path)
	if err != nil {
		return fmt.Errorf("%s: %w", src.shown, err)
	}
	defer r.Close()
	if _, err := io.Copy(onlyWriter{c.app.io.Out}, r); err != nil {
		return fmt.Errorf("%s: %w", src.shown, err)
	}
	return nil
}

// onlyWriter hides ReadFrom of *os.File, so that a download writes straight into it.
type onlyWriter struct{ io.Writer }

// meter shows how far a copy is.
type meter struct {
	steps *progress.Steps
	loud  *progress.Steps // for what must be said
	step  *progress.Step
	what  string
	total int64 // 0: not known
	bytes int64
	files int
}

func (c *copying) meter(src, dst place, info transfer.Info) *meter {
	// Only a person at a terminal wants to see it.
	m := &meter{loud: c.app.steps(false), what: fmt.Sprintf("%s -> %s", src.shown, dst.shown)}
	if m.steps = m.loud; c.opt.quiet || !c.app.io.ErrTTY() {
		m.steps = c.app.steps(true)
	}
	if info.Mode.IsRegular() {
		m.total = info.Size
	}
	m.step = m.steps.Start("cp", "%s", m.what)
	return m
}

func (m *meter) report(name string, n int64, files int) {
	m.bytes, m.files = m.bytes+n, files
	if m.total > 0 {
		m.step.Update(fmt.Sprintf("%s  %s", m.what, progress.Bytes(m.bytes)), float64(m.bytes)/float64(m.total))
		return
	}
	m.step.Update(fmt.Sprintf("%d files, %s  %s", m.files, progress.Bytes(m.bytes), name), -1)
}

func (m *meter) warn(format string, args ...any) { m.loud.Warn("cp", format, args...) }

func (m *meter) done(err error) error {
	if err == nil {
		m.step.Done("%s  %d files, %s", m.what, m.files, progress.Bytes(m.bytes))
	}
	return err
}

func (m *meter) end() { m.step.Drop() }
