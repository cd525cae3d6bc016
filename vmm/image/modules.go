package image

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// What the guest needs of its kernel. Each is a module or built in; the modules these need come with them.
var (
	// requiredModules are those without which a guest does not boot.
	requiredModules = []string{"virtio_pci", "virtio_blk", "virtio_console", "ext4"}
	// checksumModules come before an ext4 that is a module: it asks the kernel's crypto code for crc32c, which may be a
	// module that no other one names.
	checksumModules = []string{"crc32c_generic", "crc32c_cryptoapi"}
	// earlyModules are loaded before the root file system is mounted where the kernel has them.
	earlyModules = []string{"virtio_net"}
	// lateModules are for programs in the guest and for memory beyond that of the boot. Loading them costs an emulated
	// guest 0.1 s and more (virtio_mem alone 0.06 s), so they are loaded once it is ready.
	lateModules = []string{"virtio_mem", "overlay", "fuse", "vmw_vsock_virtio_transport", "virtio_rng"}
)

// module is one module to put into an initramfs.
type module struct {
	name string
	path string // below the tree's directory
	data []byte
}

// modulePlan is which modules to load and in which order.
type modulePlan struct {
	early, late []module
	vermagic    string // of the first module, "" when there is none
}

// plan picks the modules for a guest, dependencies first. A required module that the kernel has neither as a module
// nor built in is an error.
func (t *moduleTree) plan(ctx context.Context) (*modulePlan, error) {
	p := &planner{tree: t, done: map[string]bool{}}
	for _, name := range requiredModules {
		if t.dir == "" || t.builtin[name] {
			continue
		}
		if _, ok := t.paths[name]; !ok {
			hint := ""
			if !t.hasBuiltin {
				hint = " (and there is no modules.builtin that would say it is built in)"
			}
			return nil, fmt.Errorf("the kernel of %s cannot run a sandbox: it lacks %s%s; "+
				"name a full /lib/modules/VERSION with --modules, or another kernel with --kernel", t.dir, name, hint)
		}
	}
	early := slices.Concat(checksumModules, requiredModules, earlyModules)
	if t.builtin["ext4"] {
		early = slices.Concat(requiredModules, earlyModules)
	}
	for _, name := range early {
		if err := p.add(ctx, name, nil); err != nil {
			return nil, err
		}
	}
	plan := &modulePlan{early: p.order, vermagic: p.vermagic}
	p.order = nil
	for _, name := range lateModules {
		if err := p.add(ctx, name, nil); err != nil {
			return nil, err
		}
	}
	plan.late = p.order
	return plan, nil
}

// planner puts modules into an order in which they can be loaded.
type planner struct {
	tree     *moduleTree
	done     map[string]bool
	order    []module
	vermagic string
}

// add adds the module and, before it, what it depends on. One that the tree does not have is left out: it is built
// in, or optional. parents are the modules that led here.
func (p *planner) add(ctx context.Context, name string, parents []string) error {
	path, ok := p.tree.paths[name]
	if !ok || p.done[name] || p.tree.builtin[name] {
		return nil
	}
	if slices.Contains(parents, name) {
		return fmt.Errorf("kernel modules depend on each other in a circle: %s → %s", strings.Join(parents, " → "), name)
	}
	data, err := p.tree.read(ctx, name)
	if err != nil {
		return err
	}
	info, err := parseModule(data)
	if err != nil {
		return fmt.Errorf("kernel module %s: %w", path, err)
	}
	parents = append(parents, name)
	for _, dep := range info.softPre {
		if slices.Contains(parents, dep) {
			continue // a wish, not a need
		}
		if err := p.add(ctx, dep, parents); err != nil {
			return err
		}
	}
	for _, dep := range info.depends {
		if _, ok := p.tree.paths[dep]; !ok && !p.tree.builtin[dep] && p.tree.hasBuiltin {
			return fmt.Errorf("kernel module %s needs %s, which is not in %s: name a full /lib/modules/VERSION with --modules",
				name, dep, p.tree.dir)
		}
		if err := p.add(ctx, dep, parents); err != nil {
			return err
		}
	}
	if p.done[name] {
		return nil
	}
	p.done[name] = true
	if p.vermagic == "" {
		p.vermagic = info.vermagic
	}
	p.order = append(p.order, module{name: name, path: path, data: data})
	return nil
}
