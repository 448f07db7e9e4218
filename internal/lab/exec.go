package lab

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Exec turns this process into another program inside the namespace, with a
// /sys that shows the namespace's devices. It returns only with an error.
func (n *Namespace) Exec(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	// Not unlocked: execve makes this thread the only one.
	runtime.LockOSThread()
	if err := netns.Set(n.handle); err != nil {
		return fmt.Errorf("enter namespace %s: %w", n.Name, err)
	}
	if err := ownSys(); err != nil {
		return err
	}
	if err := unix.Exec(path, args, os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}

// ownSys shows the thread's network namespace in /sys, to this thread only.
func ownSys() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts to this process: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys of the namespace: %w", err)
	}
	return nil
}
