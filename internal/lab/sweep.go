package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	namePrefix = "sclab-"
	stateDir   = "/run/smartcookie-lab"
	// The owner of a lab that was left standing on purpose.
	standing = "up"
)

// Sweep removes what labs of dead processes have left behind.
func Sweep() error {
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	return sweep(func(owner string) bool {
		pid, err := strconv.Atoi(owner)
		return err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
	})
}

// Down removes the standing lab.
func Down() error {
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	if _, err := os.Stat(filepath.Join(stateDir, standing)); errors.Is(err, os.ErrNotExist) {
		return ErrNotStanding
	}
	return sweep(func(owner string) bool { return owner == standing })
}

// sweep removes everything whose owner is doomed.
func sweep(doomed func(owner string) bool) error {
	var errs []error
	for _, name := range entries(namespaceDir) {
		rest, ours := strings.CutPrefix(name, namePrefix)
		if ours && doomed(ownerOf(rest)) {
			errs = append(errs, removeNamed(name))
		}
	}
	for _, id := range entries(stateDir) {
		if doomed(ownerOf(id)) {
			errs = append(errs, removeState(filepath.Join(stateDir, id)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sweep old labs: %w", err)
	}
	return nil
}

// removeNamed ends every process in a named namespace, and its name. That it
// has gone meanwhile is no error: others may sweep too.
func removeNamed(name string) error {
	err := endProcesses(name)
	path := filepath.Join(namespaceDir, name)
	if e := unix.Unmount(path, unix.MNT_DETACH); e != nil && !errors.Is(e, unix.EINVAL) && !errors.Is(e, unix.ENOENT) {
		return errors.Join(err, fmt.Errorf("unmount namespace %s: %w", name, e))
	}
	if e := os.Remove(path); e != nil && !errors.Is(e, os.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("remove namespace %s: %w", name, e))
	}
	return err
}

// ownerOf cuts the owner out of "owner-sequence…".
func ownerOf(id string) string {
	owner, _, _ := strings.Cut(id, "-")
	return owner
}

func entries(dir string) []string {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil // nothing was ever made there
	}
	names := make([]string, len(list))
	for i, entry := range list {
		names[i] = entry.Name()
	}
	return names
}

// removeState removes a state directory and the BPF file system in it, and
// with that every pin.
func removeState(dir string) error {
	err := unix.Unmount(filepath.Join(dir, pinFolder), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount the BPF file system in %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// endProcesses kills whatever lives in the named namespace: a namespace stays
// as long as a process does.
func endProcesses(namespace string) error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		left, err := processesIn(namespace)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v outlive namespace %s", left, namespace)
		}
		for _, pid := range left {
			// One that has gone meanwhile is what we wanted.
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func processesIn(namespace string) ([]int, error) {
	var want unix.Stat_t
	err := unix.Stat(filepath.Join(namespaceDir, namespace), &want)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at namespace %s: %w", namespace, err)
	}
	var pids []int
	for _, name := range entries("/proc") {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		var have unix.Stat_t
		if unix.Stat(filepath.Join("/proc", name, "ns/net"), &have) != nil {
			continue // it has ended, or is a zombie
		}
		if have.Dev == want.Dev && have.Ino == want.Ino {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}
