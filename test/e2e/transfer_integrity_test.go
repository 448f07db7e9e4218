package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"smartcookie/internal/lab"
)

// transferSize is 200 MB; in the short form only where it says so.
func transferSize(s shape, ipv6 bool) int64 {
	if long() || s == splitRoute && !ipv6 || s == splitBridge && ipv6 {
		return 200 << 20
	}
	return 20 << 20
}

func TestTransfersArriveIntact(t *testing.T) {
	need(t, "nginx", "curl")
	for _, shape := range slices.Concat(allShapes, proxyShapes) {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{}, protection{})
			root := startNginx(t, l)
			for _, ipv6 := range []bool{false, true} {
				t.Run(family(ipv6), func(t *testing.T) {
					sum := randomFile(t, filepath.Join(root, "file"), transferSize(shape, ipv6))
					downloadIs(t, l, ipv6, sum)
					uploadIs(t, l, ipv6, root, sum)
				})
			}
		})
	}
}

// downloadIs fetches the server's file and compares its hash.
func downloadIs(t *testing.T, l *lab.Lab, ipv6 bool, want []byte) {
	t.Helper()
	received := sha256.New()
	curl := l.Client.Command(context.Background(), "curl", "-sS", "-g", "--fail", "--max-time", "60", url(l, ipv6, "/file"))
	var problem bytes.Buffer
	curl.Stdout, curl.Stderr = received, &problem
	if err := curl.Run(); err != nil {
		t.Errorf("download: %v: %s", err, &problem)
	} else if got := received.Sum(nil); !bytes.Equal(got, want) {
		t.Errorf("downloaded %x, want %x", got, want)
	}
}

// uploadIs sends the same file to the server and compares what it stored.
func uploadIs(t *testing.T, l *lab.Lab, ipv6 bool, root string, want []byte) {
	t.Helper()
	if out, err := curl(l.Client.Namespace, "-T", filepath.Join(root, "file"), url(l, ipv6, "/up/file")); err != nil {
		t.Errorf("upload: %v: %s", err, out)
		return
	}
	stored := filepath.Join(root, "up", "file")
	if got := hashOf(t, stored); !bytes.Equal(got, want) {
		t.Errorf("uploaded %x, want %x", got, want)
	}
	if err := os.Remove(stored); err != nil {
		t.Error(err)
	}
}

// randomFile writes so many random bytes and returns their hash.
func randomFile(t *testing.T, path string, size int64) []byte {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(file, sum), rand.NewChaCha8(key), size); err != nil {
		t.Fatal(err)
	}
	return sum.Sum(nil)
}

func hashOf(t *testing.T, path string) []byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		t.Fatal(err)
	}
	return sum.Sum(nil)
}
