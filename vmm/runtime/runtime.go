// Package runtime is the background process of one sandbox: it holds the lock, runs the machine, serves
// agent.sock, keeps the guest's clock and the sandbox's limits, writes the logs, and ends when the machine
// does. The machine dies with it.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"msb/vmm/engine"
	"msb/vmm/relay"
	"msb/vmm/store"
	"msb/vmm/traffic"
)

// StopNow is the signal that ends the machine at once; SIGTERM and SIGINT ask the guest to power off.
const StopNow = syscall.SIGUSR2

// Bounds of a run.
const (
	readyTimeout = 180 * time.Second
	// shutdownTimeout is how long a guest may take to power itself off, whoever asked.
	shutdownTimeout = 60 * time.Second
	// lostTimeout is how long a machine may go on after its agent's port has closed.
	lostTimeout = 3 * time.Second
	tick        = 500 * time.Millisecond
)

// ShutdownEnv overrides shutdownTimeout, in milliseconds.
const ShutdownEnv = "MSB_SHUTDOWN_FLUSH_TIMEOUT_MS"

// Deps is what a runtime is composed of.
type Deps struct {
	// Machine returns the engine of a sandbox and, of the spec, what depends on kernels and the guest binary:
	// Kernel, Initrd, Guest, Cmdline and CacheDir.
	Machine func(ctx context.Context, c store.Config) (engine.Engine, engine.Spec, error)
	// Services run beside the relay from ready to the end of the machine. One that fails is logged; it does
	// not end the sandbox.
	Services []Service
}

// Service is a part of the runtime that serves clients of its own. It returns when ctx ends.
type Service struct {
	Name string
	// Prepare, if there is one, is called before the sandbox is said to be ready, so that whoever waited for that finds
	// the service's socket. If it fails, Run is not called.
	Prepare func(ctx context.Context, s Sandbox) error
	Run     func(ctx context.Context, s Sandbox) error
}

// Sandbox is what a service gets.
type Sandbox struct {
	Home   *store.Home
	Config store.Config
	VM     engine.VM
	Relay  *relay.Relay
	Pauser *Pauser
	// Traffic is what crosses the relay; a service adds to it what it serves.
	Traffic *traffic.Log
	Log     *slog.Logger
}

// Run runs a sandbox until its machine has ended. It reports to the process that started it through the
// pipe of StatusEnv, and returns nil when the sandbox was stopped in order.
func Run(ctx context.Context, home *store.Home, name string, deps Deps) (err error) {
	st := inheritedStatus()
	defer func() { st.finish(err) }()
	// It will hold credentials: no core file of it, and no look into its memory by other programs of its user.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("protect the runtime's memory: %w", err)
	}
	// A hang-up means nothing to it. Not Ignore: what it starts would inherit that, down to the commands in a sandbox
	// of the process engine, whose shells could not even set a trap for it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, StopNow)
	defer signal.Stop(signals)

	config, err := home.Load(name)
	if err != nil {
		return err
	}
	lock, err := home.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if err := os.MkdirAll(home.LogsDir(name), 0o700); err != nil {
		return fmt.Errorf("logs of sandbox %q: %w", name, err)
	}
	logs, err := openLog(home.RuntimeLog(name), maxRuntimeLog)
	if err != nil {
		return err
	}
	defer logs.Close()
	r := &run{
		home: home, name: name, config: config, deps: deps, status: st, signals: signals,
		log: slog.New(slog.NewTextHandler(logs, nil)).With("pid", os.Getpid()), began: time.Now(),
		shutdown: make(chan struct{}, 1), diskFailed: make(chan struct{}, 1),
	}
	return r.run(ctx)
}

// run is one run of a sandbox.
type run struct {
	home    *store.Home
	name    string
	config  store.Config
	deps    Deps
	status  *status
	log     *slog.Logger
	signals chan os.Signal
	began   time.Time

	state    store.State
	vm       engine.VM
	caps     engine.Capabilities
	relay    *relay.Relay
	pauser   *Pauser
	execLog  *execLog
	traffic  traffic.Log
	shutdown chan struct{} // a client asked for it

	diskError  atomic.Pointer[string] // the first failed access to the disk
	diskFailed chan struct{}          // gets one word when diskError is there
}

func (r *run) run(ctx context.Context) (err error) {
	start, err := store.ProcessStart(os.Getpid())
	if err != nil {
		return err
	}
	r.state = store.State{Status: store.Starting, RuntimePID: os.Getpid(), RuntimeStart: start, Started: r.began}
	if err := r.save(); err != nil {
		return err
	}
	r.log.Info("starting", "sandbox", r.name, "engine", r.config.Engine, "image", r.config.Image)
	defer func() { err = errors.Join(err, r.record(err), r.home.RemoveSockets(r.name)) }()

	if err := r.home.PrepareSockets(r.name); err != nil {
		return err
	}
	starting, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("it did not become ready within %s", readyTimeout))
	defer cancel()
	if err := r.boot(starting); err != nil {
		return err
	}
	defer r.relay.Close()
	defer r.execLog.close()

	listener, err := relay.Listen(r.home.AgentSocket(r.name))
	if err != nil {
		return errors.Join(err, r.kill())
	}
	var work sync.WaitGroup
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		stopServing()
		r.relay.Close()
		work.Wait()
	}()
	work.Go(func() {
		if err := r.relay.Serve(listener); err != nil && !errors.Is(err, relay.ErrClosed) {
			r.log.Error("agent socket", "error", err)
		}
	})
	r.pauser = newPauser(r.relay, r.vm, r.log)
	r.startServices(serving, &work)
	work.Go(func() { r.logEvents(serving) })

	r.state.Status, r.state.Ready = store.Running, time.Now()
	r.state.Boot.Total = store.Duration(r.state.Ready.Sub(r.began))
	if err := r.save(); err != nil {
		return errors.Join(err, r.kill())
	}
	r.log.Info("ready", "after", time.Duration(r.state.Boot.Total), "accel", r.state.Accel,
		"generation", r.state.Generation, "agent", r.state.AgentVersion, "dual_port", r.state.DualPort)
	r.status.send(Report{Ready: true})
	err = r.keep(ctx)
	r.ending()
	return err
}

// boot starts the machine and brings its agent up. On an error no machine is left.
func (r *run) boot(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case s := <-r.signals:
			cancel(fmt.Errorf("interrupted (%s) while it started", s))
		case <-stop:
		}
	})
	defer func() {
		close(stop)
		watch.Wait()
		cancel(nil)
	}()
	eng, spec, err := r.deps.Machine(ctx, r.config)
	if err != nil {
		return err
	}
	r.caps = eng.Capabilities()
	c := r.config
	spec.Name, spec.Dir, spec.Disk, spec.KernelLog = r.name, r.home.SandboxDir(r.name), r.home.DiskPath(r.name, c.Engine), r.home.KernelLog(r.name)
	spec.DiskFormat, spec.FilesSocket = r.caps.DiskFormat, r.home.FilesSocket(r.name)
	spec.CPUs, spec.MaxCPUs, spec.MemoryMiB, spec.MaxMemoryMiB = c.CPUs, c.MaxCPUs, c.MemoryMiB, c.MaxMemoryMiB
	spec.Accel, spec.Net, spec.DualPort = c.Accel, c.Net, c.DualPort
	if err := eng.Check(ctx); err != nil {
		return err
	}
	r.status.stage("%s: starting", r.name)
	vm, err := eng.Start(ctx, spec)
	if err != nil {
		return err
	}
	r.vm = vm
	up := time.Now()
	r.state.EnginePID, r.state.Accel = vm.PID(), vm.Accel()
	r.state.Boot.Engine = store.Duration(up.Sub(r.began))
	if err := r.save(); err != nil {
		return errors.Join(err, r.kill())
	}
	if n := vm.Notice(); n != "" {
		r.log.Warn(n)
		r.status.warn("%s: %s", r.name, n)
	}
	r.status.stage("%s: booting", r.name)

	guest, err := relay.Boot(ctx, vm.Control(), vm.Bulk(), bootstrap(c, vm.Device(), r.caps))
	if err != nil {
		return r.bootError(ctx, err)
	}
	r.state.Boot.Guest = store.Duration(time.Since(up))
	r.state.Generation, r.state.AgentVersion, r.state.DualPort = guest.Generation, clean(guest.Ready.AgentVersion, 64), guest.Dual()

	out, err := openLog(r.home.ExecLog(r.name), maxExecLog)
	if err != nil {
		return errors.Join(err, r.kill())
	}
	r.execLog = newExecLog(out, r.log)
	r.relay = relay.New(guest, relay.Options{
		Log: r.log.With("part", "relay"),
		// A guest with extensions of ours answers what it does not know; others may exit.
		Shield: len(guest.Ready.Extensions) == 0,
		Output: r.execLog.output,
		Tap:    &r.traffic,
		OnShutdown: func() {
			select {
			case r.shutdown <- struct{}{}:
			default:
			}
		},
	})
	return nil
}

// bootError says why the guest did not come up: the machine's own words when it ended, and where to look.
func (r *run) bootError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(err, r.kill())
	}
	// The port closes a moment before the machine is gone.
	select {
	case <-r.vm.Done():
	case <-time.After(lostTimeout):
	}
	select {
	case <-r.vm.Done():
		if exit := r.vm.Exit(); exit.Err != nil {
			err = fmt.Errorf("the machine ended while it booted: %w", orUnknown(exit.Err))
		} else if exit.PoweredOff {
			err = fmt.Errorf("the guest powered off while it booted: %w", err)
		}
	default:
		err = errors.Join(err, r.kill())
	}
	return fmt.Errorf("%w; its console is in %s", err, r.home.KernelLog(r.name))
}

func (r *run) startServices(ctx context.Context, work *sync.WaitGroup) {
	for _, service := range r.deps.Services {
		s := Sandbox{
			Home: r.home, Config: r.config, VM: r.vm, Relay: r.relay, Pauser: r.pauser, Traffic: &r.traffic, Log: r.log.With("part", service.Name),
		}
		if service.Prepare != nil {
			if err := service.Prepare(ctx, s); err != nil {
				s.Log.Error("service not started", "error", err)
				continue
			}
		}
		work.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					s.Log.Error("service ended by a panic", "panic", p)
				}
			}()
			if err := service.Run(ctx, s); err != nil && ctx.Err() == nil {
				s.Log.Error("service ended", "error", err)
			}
		})
	}
}

func (r *run) logEvents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-r.vm.Events():
			if !ok {
				return
			}
			level := slog.LevelInfo
			if e.Kind == engine.EventDiskError || e.Kind == engine.EventPanic {
				level = slog.LevelWarn
			}
			r.log.Log(ctx, level, "machine", "event", string(e.Kind), "text", e.Text)
			if e.Kind == engine.EventDiskError {
				if r.diskError.CompareAndSwap(nil, &e.Text) {
					r.diskFailed <- struct{}{} // has room for the one
				}
			}
			if e.NoSpace {
				r.execLog.system("the host's disk is full: the guest got an I/O error\n")
			}
		}
	}
}

// save writes the run record.
func (r *run) save() error { return r.home.SaveState(r.name, r.state) }

// kill ends the machine and waits for it.
func (r *run) kill() error {
	if err := r.vm.Kill(); err != nil {
		r.log.Error("kill the machine", "error", err)
	}
	select {
	case <-r.vm.Done():
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("the machine (process %d) does not end", r.vm.PID())
	}
}

// errForced ends a run whose machine had to be killed on request.
var errForced = errors.New("forced, last writes may be lost")

// record writes how the run ended.
func (r *run) record(err error) error {
	r.state.Ended = time.Now()
	r.state.Status = store.Stopped
	switch {
	case errors.Is(err, errForced):
		r.state.Forced, r.state.Reason = true, err.Error()
	case err != nil && !r.state.Ready.IsZero():
		r.state.Status, r.state.Forced, r.state.Reason = store.Crashed, true, clean(err.Error(), 500)
	case err != nil:
		r.state.Reason = "the last start failed: " + clean(err.Error(), 500)
	}
	if text := r.diskError.Load(); text != nil {
		// The guest powered off in order, but what it wrote is not all on the disk, and its sync may not have said so.
		r.state.Forced = true
		r.state.Reason = strings.TrimPrefix(r.state.Reason+"; "+clean(*text, 300), "; ")
	}
	if err != nil {
		r.log.Error("ended", "error", err)
	} else {
		r.log.Info("ended", "reason", r.state.Reason)
	}
	if _, serr := os.Stat(r.home.SandboxDir(r.name)); errors.Is(serr, os.ErrNotExist) {
		return nil // removed while it ran
	}
	return r.save()
}

func shutdownLimit() time.Duration {
	if ms, err := strconv.Atoi(os.Getenv(ShutdownEnv)); err == nil && ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return shutdownTimeout
}
