package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// DefaultPins is where agents pin their state.
const DefaultPins = "/sys/fs/bpf/smartcookie"

// ErrBusy means that another daemon owns the pins.
var ErrBusy = errors.New("another daemon runs here")

// The agents, and the directories of their pins.
const (
	EdgeAgent   = "edge"
	ServerAgent = "server"
	HostAgent   = "host"  // with the kernel's own cookies
	ProxyAgent  = "proxy" // the edge's translator
)

var agentNames = []string{EdgeAgent, ServerAgent, HostAgent, ProxyAgent}

// Pins is a directory in the BPF file system that keeps one agent's maps and
// links alive when no daemon runs.
type Pins struct {
	path  string
	lock  *os.File
	fresh []string // links that this daemon made and did not only renew
}

// OpenPins makes the directory of an agent, or takes over what an earlier
// daemon left in it. It holds a lock until Close: one daemon for one directory.
func OpenPins(root, agent string) (*Pins, error) {
	if err := mountBPF(filepath.Dir(root)); err != nil {
		return nil, err
	}
	path := filepath.Join(root, agent)
	for _, sub := range []string{"maps", "links"} {
		if err := os.MkdirAll(filepath.Join(path, sub), 0o700); err != nil {
			return nil, fmt.Errorf("make pins: %w", err)
		}
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open pins: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", path, ErrBusy)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Pins{path: path, lock: lock}, nil
}

// Close gives up the lock. What is pinned stays.
func (p *Pins) Close() error { return p.lock.Close() }

// Gone says whether somebody has removed the pins: the agent is detached.
func (p *Pins) Gone() bool {
	_, err := os.Stat(p.path)
	return errors.Is(err, fs.ErrNotExist)
}

// mountBPF mounts the BPF file system where systemd and everybody else does,
// if nothing else provides it.
func mountBPF(near string) error {
	var st unix.Statfs_t
	for dir := near; ; dir = filepath.Dir(dir) {
		err := unix.Statfs(dir, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			return fmt.Errorf("look at %s: %w", dir, err)
		}
	}
	if uint32(st.Type) == unix.BPF_FS_MAGIC {
		return nil
	}
	const usual = "/sys/fs/bpf"
	if rel, err := filepath.Rel(usual, near); err != nil || len(rel) > 1 && rel[:2] == ".." {
		return fmt.Errorf("%s is not in a BPF file system: mount one there, or choose a directory below %s", near, usual)
	}
	if privateMounts() {
		return fmt.Errorf("no BPF file system in this mount namespace, where it would end with this process: enter the network namespace alone (nsenter --net=/run/netns/NAME), not with ip netns exec")
	}
	if err := unix.Mount("bpf", usual, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount the BPF file system at %s: %w", usual, err)
	}
	return nil
}

// privateMounts says whether what we mount is seen by us and our children only.
func privateMounts() bool {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	theirs, err := os.Readlink("/proc/1/ns/mnt")
	return err == nil && ours != theirs
}

func (p *Pins) mapPath(name string) string  { return filepath.Join(p.path, "maps", name) }
func (p *Pins) linkPath(name string) string { return filepath.Join(p.path, "links", name) }

// linkName names the link of a hook at a device. The BPF file system takes no
// dots, which VLAN devices have in their names, and devices' have no colons.
func linkName(hook, device string) string {
	return hook + "_" + strings.ReplaceAll(device, ".", ":")
}

// reusable returns the pinned maps of a group if all are there and fit the
// programs; the state of one without the others would mean nothing.
func (p *Pins) reusable(spec *ebpf.CollectionSpec, group []string) (map[string]*ebpf.Map, bool) {
	if !p.sameContract() {
		return nil, false
	}
	found := make(map[string]*ebpf.Map)
	for _, name := range group {
		m, err := ebpf.LoadPinnedMap(p.mapPath(name), nil)
		if err == nil {
			found[name] = m
			err = spec.Maps[name].Compatible(m)
		}
		if err != nil {
			for _, m := range found {
				m.Close()
			}
			return nil, false
		}
	}
	return found, true
}

// contractPin is a map that holds the contract's version: maps of another one
// may look alike and mean something else.
const contractPin = "contract"

func (p *Pins) sameContract() bool {
	m, err := ebpf.LoadPinnedMap(p.mapPath(contractPin), nil)
	if err != nil {
		return false
	}
	defer m.Close()
	var version uint32
	return m.Lookup(uint32(0), &version) == nil && version == uint32(edgeContractVersionCONTRACT_VERSION)
}

// pinContract records the version that what is pinned now keeps to.
func (p *Pins) pinContract() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: contractPin, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("make map %s: %w", contractPin, err)
	}
	defer m.Close()
	if err := m.Put(uint32(0), uint32(edgeContractVersionCONTRACT_VERSION)); err != nil {
		return fmt.Errorf("write map %s: %w", contractPin, err)
	}
	return p.pinMap(contractPin, m)
}

// pinMap puts the map in the place of an older one, never leaving none.
func (p *Pins) pinMap(name string, m *ebpf.Map) error {
	fresh := p.mapPath(name) + "_new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old pin: %w", err)
	}
	clone, err := m.Clone() // a pin moves with the object, a clone leaves it alone
	if err != nil {
		return fmt.Errorf("pin map %s: %w", name, err)
	}
	defer clone.Close()
	if err := clone.Pin(fresh); err != nil {
		return fmt.Errorf("pin map %s: %w", name, err)
	}
	if err := os.Rename(fresh, p.mapPath(name)); err != nil {
		return fmt.Errorf("pin map %s: %w", name, err)
	}
	return nil
}

// attach puts the program where the pinned link of that name has an older one,
// without a packet between them that meets none; or attaches it anew. `fits`
// says whether the old link is at the right place.
func (p *Pins) attach(name string, prog *ebpf.Program, fits func(*link.Info) bool, attach func() (link.Link, error)) (link.Link, error) {
	path := p.linkPath(name)
	if old, err := link.LoadPinnedLink(path, nil); err == nil {
		if info, err := old.Info(); err == nil && fits(info) && old.Update(prog) == nil {
			return old, nil
		}
		_ = old.Detach() // at once, where the kernel can: without its pin it goes later
		old.Close()
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove old link: %w", err)
		}
	}
	l, err := attach()
	if err != nil {
		return nil, err
	}
	if err := l.Pin(path); err != nil {
		l.Close()
		return nil, fmt.Errorf("pin link %s: %w", name, err)
	}
	p.fresh = append(p.fresh, path)
	return l, nil
}

// undo detaches what is fresh; if nothing else is left, the pins go too.
func (p *Pins) undo() {
	for _, path := range p.fresh {
		_ = detachLink(path) // there is an error to report already
	}
	if left, err := os.ReadDir(filepath.Join(p.path, "links")); err == nil && len(left) == 0 {
		_ = os.RemoveAll(p.path)
		_ = os.Remove(filepath.Dir(p.path)) // only if the other agent is not there
	}
}

// closeLinks lets go of links; those that are pinned stay.
func closeLinks(links map[string]link.Link) {
	for _, l := range links {
		if l != nil { // a filter of clsact has none
			l.Close()
		}
	}
}

// keepLinks detaches whatever an earlier daemon attached and this one did not.
func (p *Pins) keepLinks(wanted map[string]link.Link) error {
	entries, err := os.ReadDir(filepath.Join(p.path, "links"))
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, e := range entries {
		if _, ok := wanted[e.Name()]; ok {
			continue
		}
		if err := detachLink(p.linkPath(e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// detachLink takes a program off even if a daemon still holds its link.
func detachLink(path string) error {
	if strings.HasPrefix(filepath.Base(path), clsactPin) {
		if err := detachClsact(path); err != nil {
			return err
		}
	}
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		// Tracing links know no forced detaching; they end with their pin.
		if err := l.Detach(); err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOLINK) {
			l.Close()
			return fmt.Errorf("detach %s: %w", filepath.Base(path), err)
		}
		l.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin %s: %w", filepath.Base(path), err)
	}
	return nil
}

// Detach takes every agent below root off its interfaces and removes its
// state, whether a daemon runs or not. It reports what it detached.
func Detach(root string) ([]string, error) {
	var detached []string
	for _, agent := range agentNames {
		names, err := DetachAgent(root, agent)
		detached = append(detached, names...)
		if err != nil {
			return detached, err
		}
	}
	if err := os.Remove(root); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return detached, fmt.Errorf("remove pins: %w", err)
	}
	return detached, nil
}

// DetachAgent does so for one agent.
func DetachAgent(root, agent string) ([]string, error) {
	var detached []string
	links := filepath.Join(root, agent, "links")
	entries, err := os.ReadDir(links)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return detached, fmt.Errorf("list links: %w", err)
	}
	for _, e := range entries {
		if err := detachLink(filepath.Join(links, e.Name())); err != nil {
			return detached, err
		}
		detached = append(detached, agent+"/"+e.Name())
	}
	if err := os.RemoveAll(filepath.Join(root, agent)); err != nil {
		return detached, fmt.Errorf("remove pins: %w", err)
	}
	return detached, nil
}
