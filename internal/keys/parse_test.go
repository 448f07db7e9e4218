package keys

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"smartcookie/internal/cookie"
)

const goodKey = "U0VDUkVUU0VDUkVUU0VDUkVUU0VDUkVUU0VDUkVUU0U="

const good = `format: 1
epoch_seconds: 8
domains:
  default:
    - id: 1
      from_epoch: 0
      hash: siphash-2-4
      window_scale: 7
      key: ` + goodKey + `
    - id: 2
      from_epoch: 100
      hash: halfsiphash-2-4
      window_scale: 0
      key: ` + goodKey + `
`

func TestFileIsReadAsItStands(t *testing.T) {
	f, err := Parse("keys", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	entries := f.Domains["default"]
	if f.EpochSeconds != 8 || len(f.Domains) != 1 || len(entries) != 2 {
		t.Fatalf("%+v", f)
	}
	for i, want := range []Entry{
		{ID: 1, FromEpoch: 0, Hash: cookie.SipHash, WindowScale: 7},
		{ID: 2, FromEpoch: 100, Hash: cookie.HalfSipHash, WindowScale: 0},
	} {
		got := entries[i]
		if got.Secret.base64() != goodKey {
			t.Errorf("entry %d has another key", i)
		}
		got.Secret = Secret{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("entry %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestTextIsReadBackAsTheSameFile(t *testing.T) {
	f := newFile(t, "web", "null", "123", "-")
	rotate(t, f, "web", 100, cookie.HalfSipHash)
	again, err := Parse("keys", f.Text())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.Text(), f.Text()) || len(again.Domains) != 4 {
		t.Error("it changed on the way")
	}
}

func TestFaultIsReportedWithItsLine(t *testing.T) {
	for _, c := range []struct {
		name, old, new string
		want           string // start of the error
	}{
		{"other format", "format: 1", "format: 2", "keys:1: want format: 1"},
		{"no format", "format: 1\n", "", "keys: want format: 1"},
		{"long epoch", "epoch_seconds: 8", "epoch_seconds: 65", "keys:2: epoch of 65 s"},
		{"no epoch", "epoch_seconds: 8\n", "", "keys: epoch_seconds is missing"},
		{"negative epoch", "epoch_seconds: 8", "epoch_seconds: -8", "keys:2: the number"},
		{"unknown field", "epoch_seconds: 8", "epoch_seconds: 8\nepochs: 9", "keys:3: unknown field"},
		{"unknown field of an entry", "id: 2", "id: 2\n      name: x", "keys:11: unknown field"},
		{"repeated field", "id: 2", "id: 2\n      id: 3", "keys:11: the same field again"},
		{"repeated domain", "domains:\n", "domains:\n  default: []\n", "keys:5: the same field again"},
		{"bad domain name", "default:", "Default:", "keys:4: a domain's name has"},
		{"no domain", good[strings.Index(good, "domains:"):], "domains: {}\n", "keys:3: 0 domains"},
		{"no entries", good[strings.Index(good, "default:"):], "default: []\n", "keys:4: domain default has no keys"},
		{"text for a number", "from_epoch: 100", "from_epoch: soon", "keys:11: a value of another type"},
		{"epoch too late", "from_epoch: 100", "from_epoch: 99999999999999", "keys:11: from_epoch is beyond"},
		{"epoch repeated", "from_epoch: 100", "from_epoch: 0", "keys:11: from_epoch is not above that of key 1"},
		{"id repeated", "id: 2", "id: 1", "keys:10: id 1 again"},
		{"id missing", "    - id: 2\n      from_epoch", "    - from_epoch", "keys:10: id is missing"},
		{"scale missing", "      window_scale: 0\n", "", "keys:10: window_scale is missing"},
		{"scale too large", "window_scale: 0", "window_scale: 15", "keys:13: window_scale 15"},
		{"other hash", "hash: halfsiphash-2-4", "hash: crc32", "keys:12: want hash"},
		{"short key", goodKey, "U0VDUkVU", "keys:9: want key: 32 bytes"},
		{"long key", goodKey, "U0VDUkVUU0VDUkVUU0VDUkVUU0VDUkVUU0VDUkVUU0VD", "keys:9: want key: 32 bytes"},
		{"stray bits in a key", goodKey, goodKey[:42] + "V=", "keys:9: want key: 32 bytes"},
		{"key not in base64", goodKey, "%" + goodKey[1:], "keys:9: "},
		{"key as hash", "siphash-2-4", goodKey, "keys:7: want hash"},
		{"key as number", "from_epoch: 0", "from_epoch: " + goodKey, "keys:6: a value of another type"},
		{"two documents", "format: 1", "---\nformat: 1\n---\n", "keys: want one YAML document"},
		{"open quote", goodKey, `"` + goodKey, "keys:"},
		{"key without a colon", "key: " + goodKey, goodKey, "keys:"},
		{"nothing", good, "", "keys: want one YAML document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.new, 1)
			if text == good {
				t.Fatal("nothing replaced")
			}
			_, err := Parse("keys", []byte(text))
			var fault *FileError
			if !errors.As(err, &fault) || fault.ExitCode() != 2 {
				t.Fatalf("got %v, want a *FileError with exit code 2", err)
			}
			if !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%q, want %q", err, c.want)
			}
			if strings.ContainsRune(err.Error(), '\n') || strings.Contains(err.Error(), "U0VD") {
				t.Errorf("%q shows the source", err)
			}
		})
	}
}

func FuzzParseNeverPanicsNorShowsTheKey(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("format: 1\nepoch_seconds: 8\ndomains: {d: [{}]}"))
	f.Add([]byte("format: 1\nepoch_seconds: 8\ndomains:\n a: !0\n 0\n   -0")) // the YAML library panics
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse("keys", text)
		if err != nil {
			if strings.Contains(err.Error(), goodKey) {
				t.Errorf("%q shows the key", err)
			}
			return
		}
		if _, err := Parse("keys", file.Text()); err != nil {
			t.Errorf("own text: %v", err)
		}
	})
}

func TestSecretNeverShowsItself(t *testing.T) {
	f, err := Parse("keys", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	entry := f.Domains["default"][0]
	hidden := struct{ secret Secret }{entry.Secret}
	if got := fmt.Sprintf("%v %x", entry.Secret, entry.Secret); got != redacted+" "+redacted {
		t.Errorf("shows as %q", got)
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		for _, v := range []any{entry.Secret, &entry.Secret, entry, &entry, f, *f, f.Domains, hidden} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("keys", "file", f, "entry", entry, "secret", entry.Secret)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("keys", "file", f, "entry", entry, "secret", entry.Secret)
	if err := json.NewEncoder(&out).Encode(f); err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(goodKey)
	if err != nil {
		t.Fatal(err)
	}
	prk := entry.Secret.material().prk
	for _, form := range []string{
		"SECRETSECRET", goodKey[:8], hex.EncodeToString(key)[:8], fmt.Sprint(key)[1:12], "0x53, 0x45",
		hex.EncodeToString(prk)[:8], strings.Trim(fmt.Sprint(prk[:4]), "[]"),
	} {
		if strings.Contains(strings.ToLower(out.String()), strings.ToLower(form)) {
			t.Errorf("the key shows as %q", form)
		}
	}
}
