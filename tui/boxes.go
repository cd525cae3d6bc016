package tui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"msb/controlclient"
	"msb/tui/files"
	"msb/tui/foreign"
	"msb/tui/keymap"
	"msb/tui/link"
	"msb/tui/pane"
	"msb/turn"
	"msb/vmm"
	"msb/vmm/store"
)

// refreshEvery is how often the list is read: sandboxes are started and stopped
// by others too, and nothing tells.
const refreshEvery = 2 * time.Second

// listOnce reads the list of sandboxes.
func (a *App) listOnce() tea.Cmd {
	host, ctx := a.o.Host, a.ctx
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		list, err := host.List(ctx)
		return boxesMsg{list, err}
	}
}

// list reads it again and again.
func (a *App) list() tea.Cmd {
	return tea.Batch(a.listOnce(), tea.Tick(refreshEvery, func(time.Time) tea.Msg { return refreshMsg{} }))
}

func (a *App) listedBoxes(m boxesMsg) tea.Cmd {
	first := !a.listed
	a.listed, a.listErr = true, ""
	if m.err != nil {
		a.listErr = foreign.Text(m.err.Error())
		return nil
	}
	a.boxes = m.list
	defer a.watchUsage()
	a.chosen = max(0, min(a.chosen, len(a.boxes)-1))
	if first && a.box.State == "" {
		return a.openFirst()
	}
	for _, sb := range a.boxes {
		if sb.Name != a.box.Name {
			continue
		}
		was := a.box
		a.box = sb
		if was.State == store.Running && sb.State != store.Running {
			a.closeBox()
			a.say("", fmt.Errorf("%s has stopped", sb.Name))
			return a.panel.Set(nil)
		}
		if was.RuntimePID != sb.RuntimePID && a.turns != nil {
			a.closeBox()
		}
		a.connect()
		return a.filesStart()
	}
	if a.box.State != "" { // it is gone
		a.closeBox()
		a.box = vmm.Sandbox{}
		a.tab = tabBoxes
		return a.panel.Set(nil)
	}
	return nil
}

// openFirst opens the sandbox that was named, or the only one that may be
// meant.
func (a *App) openFirst() tea.Cmd {
	running := -1
	for i, sb := range a.boxes {
		if sb.Name == a.o.Name {
			a.chosen = i
			return a.open(sb)
		}
		if sb.State == store.Running {
			if running >= 0 {
				running = -2
			} else if running == -1 {
				running = i
			}
		}
	}
	switch {
	case a.o.Name != "":
		a.say("", fmt.Errorf("there is no sandbox %s; `msb up %s` makes it", a.o.Name, a.o.Name))
	case len(a.boxes) == 1:
		running = 0
	}
	a.box = vmm.Sandbox{}
	if running >= 0 && a.o.Name == "" {
		a.chosen = running
		return a.open(a.boxes[running])
	}
	a.tab = tabBoxes
	return nil
}

// boxKey is a key in the list.
func (a *App) boxKey(k tea.KeyPressMsg) tea.Cmd {
	if k.String() == "n" {
		a.newBox()
		return nil
	}
	if len(a.boxes) == 0 {
		return nil
	}
	sb := a.boxes[a.chosen]
	switch k.String() {
	case "up", "k":
		a.chosen = max(0, a.chosen-1)
		return a.readSessions()
	case "down", "j":
		a.chosen = min(len(a.boxes)-1, a.chosen+1)
		return a.readSessions()
	case "home", "g":
		a.chosen = 0
		return a.readSessions()
	case "end", "G":
		a.chosen = len(a.boxes) - 1
		return a.readSessions()
	case "enter":
		a.tab = tabTurns
		if sb.Name != a.box.Name || a.box.State == "" {
			return a.open(sb)
		}
	case "s":
		return a.startBox(sb)
	case "x":
		if sb.Running() {
			a.dialog = ask(fmt.Sprintf("Stop %s? Turns and shells in it end.", sb.Name), func() tea.Cmd { return a.stopBox(sb) })
		}
	case "p":
		return a.pauseBox(sb)
	case "d":
		a.dialog = typed(fmt.Sprintf("Remove %s with its disk and all that is on it? Type its name.", sb.Name), sb.Name,
			func() tea.Cmd { return a.removeBox(sb) })
	case "r":
		return a.listOnce()
	}
	return nil
}

// act does something with a sandbox that takes its time.
func (a *App) act(sb vmm.Sandbox, doing, did string, f func(ctx context.Context) error) tea.Cmd {
	if a.busy[sb.Name] != "" {
		a.say("", fmt.Errorf("%s: still %s", sb.Name, a.busy[sb.Name]))
		return nil
	}
	a.busy[sb.Name] = doing
	ctx := a.ctx
	return func() tea.Msg {
		err := f(ctx)
		if errors.Is(err, vmm.ErrForced) {
			return doneMsg{sb.Name, fmt.Sprintf("%s %s (forced)", sb.Name, did), nil}
		}
		return doneMsg{sb.Name, sb.Name + " " + did, err}
	}
}

func (a *App) startBox(sb vmm.Sandbox) tea.Cmd {
	if sb.Running() {
		a.say("", fmt.Errorf("%s runs", sb.Name))
		return nil
	}
	host := a.o.Host
	return a.act(sb, "starting", "runs", func(ctx context.Context) error {
		_, err := host.Start(ctx, sb.Name, vmm.StartOptions{}, nil)
		return err
	})
}

func (a *App) stopBox(sb vmm.Sandbox) tea.Cmd {
	host := a.o.Host
	return a.act(sb, "stopping", "has stopped", func(ctx context.Context) error { return host.Stop(ctx, sb.Name, vmm.StopOptions{}) })
}

func (a *App) removeBox(sb vmm.Sandbox) tea.Cmd {
	host := a.o.Host
	return a.act(sb, "removing", "is removed", func(ctx context.Context) error {
		return host.Remove(ctx, sb.Name, vmm.RemoveOptions{Force: true})
	})
}

func (a *App) pauseBox(sb vmm.Sandbox) tea.Cmd {
	if sb.State != store.Running {
		a.say("", fmt.Errorf("%s does not run", sb.Name))
		return nil
	}
	doing, did := "pausing", "is paused"
	if sb.Paused {
		doing, did = "resuming", "goes on"
	}
	return a.act(sb, doing, did, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		c := controlclient.Connect(sb.ControlSocket)
		defer c.Close()
		if sb.Paused {
			return c.Resume(ctx)
		}
		return c.Pause(ctx)
	})
}

// viewBoxes draws the list.
func (a *App) viewBoxes(w, h int) []string {
	t := a.theme
	var out []string
	switch {
	case a.listErr != "":
		out = append(out, t.Fail.Render(" "+a.listErr))
	case !a.listed:
		out = append(out, t.Dim.Render(" reading …"))
	case len(a.boxes) == 0:
		out = append(out, "", " There is no sandbox yet.", "", t.Dim.Render(" "+a.hints(keymap.Boxes, "new", "makes one here")+"; `msb up demo` makes one, starts it and opens this screen."))
	}
	top := max(0, a.chosen-h+4)
	for i := top; i < len(a.boxes) && len(out) < h; i++ {
		sb := a.boxes[i]
		state, style := a.stateOf(sb)
		engine := sb.Engine
		if sb.Accel != "" && sb.Accel != "none" && sb.Accel != sb.Engine {
			engine += "/" + sb.Accel
		}
		mark := "  "
		if sb.Name == a.box.Name {
			mark = t.Accent.Render("▸") + " "
		}
		left := fmt.Sprintf("%s%-16s %s", mark, foreign.Text(sb.Name), style.Render("● "+pane.Fit(state, 10)))
		cpu, mem := "", ""
		u := a.use[sb.Name]
		if u != nil {
			cpu, mem = spark(u.cpu), spark(u.memory)
		}
		mid := fmt.Sprintf(" %-11s %d cpu %-8s  %s %-8s", foreign.Text(engine), sb.CPUs, cpu, pane.Fit(u.memoryText(sb), 13), mem)
		if w < 80 {
			mid = fmt.Sprintf(" %d cpu %-8s %d MiB %-8s", sb.CPUs, cpu, sb.MemoryMiB, mem)
		}
		var mounts []string
		for _, m := range sb.Mounts {
			mounts = append(mounts, foreign.Text(m.Dir))
		}
		line := pane.Fit(left+mid+" "+strings.Join(mounts, " "), w)
		if i == a.chosen {
			line = t.Sel.Render(pane.Fit(ansiPlain(line), w))
		}
		out = append(out, line)
		if i == a.chosen && sb.Reason != "" {
			out = append(out, t.Fail.Render(pane.Fit("     "+foreign.Text(sb.Reason), w)))
		}
	}
	if a.chosen < len(a.boxes) && h-len(out) > 8 {
		sb := a.boxes[a.chosen]
		out = append(out, "", t.Dim.Render(pane.Fit(" "+strings.Repeat("─", max(w-2, 0)), w)))
		net := "off"
		if sb.Net {
			net = "on"
		}
		var dirs []string
		for _, m := range sb.Mounts {
			dirs = append(dirs, m.Dir+" shows "+m.GuestPath)
		}
		if len(dirs) == 0 {
			dirs = []string{"none"}
		}
		for _, f := range [][2]string{{"image", sb.Image}, {"mounts", strings.Join(dirs, ", ")}, {"disk", files.Size(uint64(max(sb.RootDisk, 0)))}, {"network", net},
			{"user", sb.User}, {"sessions", sessionsText(a.boxSessions[sb.Name])}, {"guest agent", fmt.Sprintf("generation %d, %s", sb.Generation, sb.AgentVersion)},
			{"created", sb.Created.Local().Format("2006-01-02 15:04")}, {"folder", sb.Directory}} {
			out = append(out, t.Dim.Render(fmt.Sprintf("  %-12s ", f[0]))+foreign.Text(f[1]))
		}
	}
	return pane.Block(out, w, h)
}

// sessionsText is the agent's sessions of a sandbox in one line.
func sessionsText(list []turn.Info) string {
	if len(list) == 0 {
		return "none"
	}
	var names []string
	for i, s := range list {
		if i == 3 {
			names = append(names, fmt.Sprintf("and %d more", len(list)-3))
			break
		}
		name := s.Name
		if name == "" {
			name = s.ID[:min(8, len(s.ID))]
		}
		names = append(names, fmt.Sprintf("%s (%s, %d turns)", name, s.State, s.Turns))
	}
	return strings.Join(names, ", ")
}

// readSessions reads the sessions of the sandbox under the cursor.
func (a *App) readSessions() tea.Cmd {
	if a.chosen >= len(a.boxes) || a.boxes[a.chosen].State != store.Running {
		return nil
	}
	ctx, sb := a.ctx, a.boxes[a.chosen]
	return func() tea.Msg {
		list, err := link.SessionsOf(ctx, sb.TurnSocket)
		return boxSessionsMsg{sb.Name, list, err}
	}
}

// newBox asks for what a new sandbox shall be.
func (a *App) newBox() {
	create := a.o.Create
	if create == nil {
		a.say("", errors.New("`msb create` makes sandboxes"))
		return
	}
	images := []string{"debian"}
	if a.o.Images != nil {
		if list := a.o.Images(); len(list) > 0 {
			images = list
		}
	}
	image := images[0]
	if slices.Contains(images, "debian") {
		image = "debian"
	}
	send := a.send
	a.dialog = form("A new sandbox", []*field{
		{name: "name", hint: "letters, digits and dashes"},
		{name: "image", value: image, choices: images, hint: "one that msb can build is built first, which takes a while"},
		{name: "cpus", value: fmt.Sprint(vmm.DefaultCPUs)},
		{name: "memory", value: fmt.Sprint(vmm.DefaultMemoryMiB), hint: "in MiB"},
		{name: "network", value: "off", choices: []string{"off", "on"}},
	}, func(v map[string]string) (tea.Cmd, error) {
		b := NewBox{Name: v["name"], Image: v["image"], Net: v["network"] == "on"}
		if err := store.ValidateName(b.Name); err != nil {
			return nil, err
		}
		for _, o := range a.boxes {
			if o.Name == b.Name {
				return nil, fmt.Errorf("there is a sandbox %s already", b.Name)
			}
		}
		var err error
		if b.CPUs, err = strconv.Atoi(v["cpus"]); err != nil || b.CPUs < 1 {
			return nil, errors.New("cpus: a number from 1 on")
		}
		if b.MemoryMiB, err = strconv.Atoi(v["memory"]); err != nil || b.MemoryMiB < 1 {
			return nil, errors.New("memory: a number of MiB")
		}
		return a.act(vmm.Sandbox{Name: b.Name}, "making", "is made and runs", func(ctx context.Context) error {
			return create(ctx, b, func(text string) { send(sayMsg(text)) })
		}), nil
	})
}
