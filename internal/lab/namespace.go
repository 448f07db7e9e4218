package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespaces are bound here, where ip-netns(8) looks for them too.
const namespaceDir = "/run/netns"

// Namespace is a named network namespace.
type Namespace struct {
	Name   string
	handle netns.NsHandle
	link   *netlink.Handle
}

// shareNamespaceDir makes the directory a shared mount, as ip-netns(8) does: the
// first to call that would otherwise cover the namespaces bound there before.
func shareNamespaceDir() error {
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", namespaceDir, err)
	}
	dir, err := os.Open(namespaceDir)
	if err != nil {
		return fmt.Errorf("open %s: %w", namespaceDir, err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", namespaceDir, err)
	}
	share := func() error { return unix.Mount("", namespaceDir, "", unix.MS_SHARED|unix.MS_REC, "") }
	if err := share(); err == nil {
		return nil
	}
	if err := unix.Mount(namespaceDir, namespaceDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", namespaceDir, err)
	}
	if err := share(); err != nil {
		return fmt.Errorf("share %s: %w", namespaceDir, err)
	}
	return nil
}

func newNamespace(name string) (*Namespace, error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("find own namespace: %w", err)
	}
	defer home.Close()
	handle, err := netns.NewNamed(name)
	if back := netns.Set(home); back != nil {
		// The thread stays locked: Go ends it together with this goroutine.
		return nil, errors.Join(err, fmt.Errorf("return from namespace %s: %w", name, back))
	}
	runtime.UnlockOSThread()
	if err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", name, err)
	}
	made, err := withLink(name, handle)
	if err != nil {
		return nil, errors.Join(err, removeNamed(name))
	}
	return made, nil
}

func openNamespace(name string) (*Namespace, error) {
	handle, err := netns.GetFromName(name)
	if err != nil {
		return nil, fmt.Errorf("open namespace %s: %w", name, err)
	}
	return withLink(name, handle)
}

func withLink(name string, handle netns.NsHandle) (*Namespace, error) {
	// Only what is needed: a kernel may lack XFRM, which is opened otherwise.
	link, err := netlink.NewHandleAt(handle, unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("open netlink in namespace %s: %w", name, err)
	}
	return &Namespace{Name: name, handle: handle, link: link}, nil
}

// close lets go of the namespace and leaves it standing.
func (n *Namespace) close() {
	n.link.Close()
	n.handle.Close()
}

// remove ends every process in the namespace and then the namespace.
func (n *Namespace) remove() error {
	n.close()
	return removeNamed(n.Name)
}

// Do runs fn on a thread that is in the namespace. What fn starts in other
// goroutines is outside; child processes that fn starts are inside.
func (n *Namespace) Do(fn func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find own namespace: %w", err)
	}
	defer home.Close()
	if err := netns.Set(n.handle); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter namespace %s: %w", n.Name, err)
	}
	defer func() {
		if back := netns.Set(home); back != nil {
			// The thread stays locked: Go ends it together with this goroutine.
			err = errors.Join(err, fmt.Errorf("leave namespace %s: %w", n.Name, back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}

// Sysctl sets a kernel parameter of the namespace, named as sysctl(8) does
// ("net.ipv4.tcp_syncookies"). A slash stands for a dot inside a name.
func (n *Namespace) Sysctl(name, value string) error {
	return n.Do(func() error {
		if err := os.WriteFile(sysctlPath(name), []byte(value), 0); err != nil {
			return fmt.Errorf("set %s in %s: %w", name, n.Name, err)
		}
		return nil
	})
}

// ReadSysctl returns a kernel parameter of the namespace.
func (n *Namespace) ReadSysctl(name string) (string, error) {
	var value []byte
	err := n.Do(func() (err error) {
		value, err = os.ReadFile(sysctlPath(name))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read %s in %s: %w", name, n.Name, err)
	}
	return strings.TrimSpace(string(value)), nil
}

func (n *Namespace) sysctls(settings []setting) error {
	for _, s := range settings {
		if err := n.Sysctl(s.name, s.value); err != nil {
			return err
		}
	}
	return nil
}

type setting struct{ name, value string }

func sysctlPath(name string) string {
	swap := strings.NewReplacer(".", "/", "/", ".")
	return filepath.Join("/proc/sys", swap.Replace(name))
}
