package keys

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
)

// secretLength is the length of a domain key in bytes.
const secretLength = 32

// Secret is a domain key. It never shows itself: not in a format, a log or
// JSON. A closure holds the bytes because fmt follows pointers, and does not
// ask Format in the unexported fields of other types.
type Secret struct {
	material func() *material
}

type material struct {
	key [secretLength]byte
	prk []byte // HKDF-Extract of key (RFC 5869 2.2): every use expands it
}

func newSecret(key [secretLength]byte) (Secret, error) {
	prk, err := hkdf.Extract(sha256.New, key[:], nil)
	if err != nil {
		return Secret{}, fmt.Errorf("extract key: %w", err)
	}
	m := &material{key, prk}
	return Secret{func() *material { return m }}, nil
}

func randomSecret(random io.Reader) (Secret, error) {
	var key [secretLength]byte
	if _, err := io.ReadFull(random, key[:]); err != nil {
		return Secret{}, fmt.Errorf("read random key: %w", err)
	}
	return newSecret(key)
}

// expand is HKDF-Expand (RFC 5869 2.3).
func (s Secret) expand(info string, length int) []byte {
	out, err := hkdf.Expand(sha256.New, s.material().prk, info, length)
	if err != nil {
		panic(fmt.Sprintf("keys: expand %d bytes: %v", length, err))
	}
	return out
}

// base64 is the key as it stands in a file.
func (s Secret) base64() string {
	return base64.StdEncoding.EncodeToString(s.material().key[:])
}

// Fingerprint identifies the key and reveals nothing of it.
func (s Secret) Fingerprint() string {
	return hex.EncodeToString(s.expand("smartcookie/1 fingerprint", 8))
}

const redacted = "[redacted]"

// Format writes a placeholder whatever the verb.
func (Secret) Format(s fmt.State, _ rune) { fmt.Fprint(s, redacted) }

// LogValue returns a placeholder.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a placeholder.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
