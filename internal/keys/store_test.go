package keys

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// storedFile returns the name of a key file in a new directory.
func storedFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func wantFault(t *testing.T, err error, part string) {
	t.Helper()
	var fault *FileError
	if !errors.As(err, &fault) || fault.ExitCode() != 2 {
		t.Fatalf("got %v, want a *FileError with exit code 2", err)
	}
	if !strings.HasPrefix(err.Error(), fault.File+":") || !strings.Contains(err.Error(), part) {
		t.Errorf("%q does not name the file and %q", err, part)
	}
}

func TestCreatedFileIsPrivateAndReadBack(t *testing.T) {
	name := filepath.Join(t.TempDir(), "keys")
	f := newFile(t, "web", "mail")
	if err := f.Create(name); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	again, err := Read(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.Text(), f.Text()) {
		t.Error("it changed on the way")
	}
	wantOnly(t, name)
}

// wantOnly checks that the file's directory has nothing else: no temporary file.
func wantOnly(t *testing.T, name string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(name))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != filepath.Base(name) {
		t.Errorf("the directory has %v", entries)
	}
}

func TestCreateNeverReplaces(t *testing.T) {
	name := storedFile(t, "precious")
	err := newFile(t, "web").Create(name)
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want %v", err, fs.ErrExist)
	}
	if text, _ := os.ReadFile(name); string(text) != "precious" {
		t.Error("the file is lost")
	}
	wantOnly(t, name)
}

func TestWriteReplacesTheFileByAPrivateOne(t *testing.T) {
	name := storedFile(t, "old")
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	f := newFile(t, "web")
	if err := f.Write(name); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(name); err != nil {
		t.Error(err)
	}
	wantOnly(t, name)
}

func TestWriteThatFailsLeavesTheOldFile(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "keys")
	if err := os.MkdirAll(filepath.Join(directory, "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := newFile(t, "web").Write(directory); err == nil {
		t.Error("a directory was replaced")
	}
	wantOnly(t, directory)
}

func TestFileThatOthersMayUseIsRefused(t *testing.T) {
	name := storedFile(t, good)
	for mode := fs.FileMode(0); mode < 0o1000; mode++ {
		if err := os.Chmod(name, mode|0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Read(name)
		if mode&0o077 != 0 {
			wantFault(t, err, "chmod 600")
		} else if err != nil {
			t.Errorf("mode %04o: %v", mode|0o600, err)
		}
	}
}

func TestSymbolicLinkIsRefused(t *testing.T) {
	name := storedFile(t, good)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	_, err := Read(link)
	wantFault(t, err, "symbolic link")
}

func TestOnlyARegularFileIsRead(t *testing.T) {
	directory := t.TempDir()
	_, err := Read(directory)
	wantFault(t, err, "not a regular file")

	fifo := filepath.Join(directory, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Read(fifo)
	wantFault(t, err, "not a regular file")
}

func TestMissingFileIsReportedAsSuch(t *testing.T) {
	_, err := Read(filepath.Join(t.TempDir(), "none"))
	wantFault(t, err, "no such file")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not %v", err, fs.ErrNotExist)
	}
}

func TestHugeFileIsRefused(t *testing.T) {
	_, err := Read(storedFile(t, strings.Repeat("#", fileSizeMax+1)))
	wantFault(t, err, "longer than")
}

// ownedInfo is a private regular file of some user.
type ownedInfo struct{ user uint32 }

func (i ownedInfo) Name() string       { return "keys" }
func (i ownedInfo) Size() int64        { return 0 }
func (i ownedInfo) Mode() fs.FileMode  { return 0o600 }
func (i ownedInfo) ModTime() time.Time { return time.Time{} }
func (i ownedInfo) IsDir() bool        { return false }
func (i ownedInfo) Sys() any           { return &syscall.Stat_t{Uid: i.user} }

func TestOnlyRootAndTheEffectiveUserMayOwnTheFile(t *testing.T) {
	for _, c := range []struct {
		owner   uint32
		user    int
		refused bool
	}{
		{0, 0, false}, {0, 1000, false}, {1000, 1000, false}, {1000, 0, true}, {1001, 1000, true},
	} {
		if err := checkPrivate(ownedInfo{c.owner}, c.user); (err != nil) != c.refused {
			t.Errorf("file of %d, user %d: %v", c.owner, c.user, err)
		}
	}
}
