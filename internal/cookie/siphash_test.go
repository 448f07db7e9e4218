package cookie

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

type hashVectors struct {
	Key     string
	Outputs []string
}

func loadHashVectors(t *testing.T, file string) (key []byte, outputs []string) {
	t.Helper()
	text, err := os.ReadFile("../../contract/vectors/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var v hashVectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Outputs) != 64 {
		t.Fatalf("%s has %d outputs, want 64", file, len(v.Outputs))
	}
	key, err = hex.DecodeString(v.Key)
	if err != nil {
		t.Fatal(err)
	}
	return key, v.Outputs
}

// ascending returns the n bytes 00 01 02 ….
func ascending(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestSipHashMatchesTheDesignersOutputs(t *testing.T) {
	key, outputs := loadHashVectors(t, "siphash.json")
	for n, want := range outputs {
		sum := SipHash24([16]byte(key), ascending(n))
		got := hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, sum))
		if got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
}

func TestHalfSipHashMatchesTheDesignersOutputs(t *testing.T) {
	key, outputs := loadHashVectors(t, "halfsiphash.json")
	for n, want := range outputs {
		sum := HalfSipHash24([8]byte(key), ascending(n))
		got := hex.EncodeToString(binary.LittleEndian.AppendUint32(nil, sum))
		if got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
}
