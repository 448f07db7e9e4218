package keys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// fileSizeMax bounds what is read: 64 domains with over a hundred keys each.
const fileSizeMax = 1 << 20

// Read reads the key file. Nobody but its owner, root or the effective user,
// may have access to it, and it must not be a symbolic link. Errors are all
// *FileError.
func Read(name string) (*File, error) {
	text, err := readPrivate(name)
	if err != nil {
		return nil, &FileError{File: name, Err: err}
	}
	return Parse(name, text)
}

func readPrivate(name string) ([]byte, error) {
	// O_NONBLOCK: a FIFO must not hold us up.
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, errors.New("is a symbolic link: name the file itself")
	}
	if err != nil {
		return nil, fmt.Errorf("open key file: %w", cause(err))
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat key file: %w", cause(err))
	}
	if err := checkPrivate(info, os.Geteuid()); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, fileSizeMax+1))
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", cause(err))
	}
	if len(text) > fileSizeMax {
		return nil, fmt.Errorf("is longer than %d bytes", fileSizeMax)
	}
	return text, nil
}

// cause drops the name from an error of package os: FileError has it already.
func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func checkPrivate(info fs.FileInfo, user int) error {
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("mode %04o lets others at the keys: chmod 600", mode)
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if owner != 0 && owner != user {
		return fmt.Errorf("belongs to user %d: want root or the user %d that runs this", owner, user)
	}
	return nil
}

// Create writes a key file that must not exist yet.
func (f *File) Create(name string) error {
	return f.store(name, func(temporary string) error {
		defer os.Remove(temporary)
		return os.Link(temporary, name) // unlike a rename, never replaces
	})
}

// Write puts a key file in the place of any other, at once and entirely, or
// not at all. It belongs to who writes: an earlier owner is not trusted.
func (f *File) Write(name string) error {
	return f.store(name, func(temporary string) error { return os.Rename(temporary, name) })
}

// store writes a private temporary file beside name, has it put in place, and
// makes both survive a crash.
func (f *File) store(name string, place func(temporary string) error) error {
	directory := filepath.Dir(name)
	temporary, err := writeTemporary(directory, f.Text())
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := place(temporary); err != nil {
		os.Remove(temporary)
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := syncDirectory(directory); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// writeTemporary makes a new file of mode 0600 in the directory.
func writeTemporary(directory string, text []byte) (name string, err error) {
	file, err := os.CreateTemp(directory, ".keys-*")
	if err != nil {
		return "", err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		os.Remove(file.Name())
		return "", err
	}
	return file.Name(), nil
}

func syncDirectory(name string) error {
	directory, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
