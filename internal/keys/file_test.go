package keys

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/cookie"
)

// randomBytes is a source of the same bytes in every run.
func randomBytes() *rand.ChaCha8 { return rand.NewChaCha8([32]byte{1}) }

func newFile(t *testing.T, domains ...string) *File {
	t.Helper()
	f, err := New(8)
	if err != nil {
		t.Fatal(err)
	}
	random := randomBytes()
	for _, d := range domains {
		if err := f.AddDomain(d, cookie.SipHash, 7, random); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func rotate(t *testing.T, f *File, domain string, from uint64, hash cookie.Hash) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{2, byte(from)})
	if err := f.Rotate(domain, from, hash, 7, random); err != nil {
		t.Fatal(err)
	}
}

type keyVectors struct {
	Vectors []struct {
		Secret       string
		Hash         string
		EpochSeconds uint32 `json:"epoch_seconds"`
		Epoch        uint64
		EpochKey     string `json:"epoch_key"`
	}
	Fingerprints []struct{ Secret, Fingerprint string }
}

func readKeyVectors(t *testing.T) (v keyVectors) {
	t.Helper()
	text, err := os.ReadFile("../../contract/vectors/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vectors) == 0 || len(v.Fingerprints) == 0 {
		t.Fatal("keys.json is empty")
	}
	return v
}

func secretOf(t *testing.T, text string) Secret {
	t.Helper()
	key, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := newSecret([secretLength]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func TestEpochKeysAreThoseOfTheContract(t *testing.T) {
	for _, v := range readKeyVectors(t).Vectors {
		hash, err := cookie.ParseHash(v.Hash)
		if err != nil {
			t.Fatal(err)
		}
		f := &File{v.EpochSeconds, map[string][]Entry{"d": {{ID: 1, Hash: hash, WindowScale: 9, Secret: secretOf(t, v.Secret)}}}}
		slot, ok := f.EpochKey("d", v.Epoch)
		got := hex.EncodeToString(slot.Key[:hash.KeyLength()])
		if !ok || got != v.EpochKey || slot.Epoch != v.Epoch || slot.Hash != hash || slot.WindowScale != 9 {
			t.Errorf("%+v: %v, key %s, slot %+v", v, ok, got, slot)
		}
	}
}

func TestFingerprintIsThatOfTheContract(t *testing.T) {
	for _, v := range readKeyVectors(t).Fingerprints {
		if got := secretOf(t, v.Secret).Fingerprint(); got != v.Fingerprint {
			t.Errorf("%s, want %s", got, v.Fingerprint)
		}
	}
}

func TestHalfSipHashKeyLeavesTheRestOfTheSlotZero(t *testing.T) {
	f := newFile(t, "d")
	rotate(t, f, "d", 10, cookie.HalfSipHash)
	slot, _ := f.EpochKey("d", 10)
	if [8]byte(slot.Key[8:]) != [8]byte{} || [8]byte(slot.Key[:8]) == [8]byte{} {
		t.Error("the key is not 8 bytes long")
	}
}

func TestEntryIsInForceUntilTheNextOne(t *testing.T) {
	f := newFile(t, "d")
	rotate(t, f, "d", 100, cookie.HalfSipHash)
	rotate(t, f, "d", 200, cookie.SipHash)
	for epoch, want := range map[uint64]uint32{0: 1, 99: 1, 100: 2, 199: 2, 200: 3, 1 << 40: 3} {
		if e, ok := f.EntryAt("d", epoch); !ok || e.ID != want {
			t.Errorf("epoch %d: key %d, want %d", epoch, e.ID, want)
		}
	}
	if slot, _ := f.EpochKey("d", 150); slot.Hash != cookie.HalfSipHash {
		t.Errorf("epoch 150 uses %v", slot.Hash)
	}
}

func TestThereIsNoKeyBeforeTheFirstEntryOrForAnotherDomain(t *testing.T) {
	f := newFile(t, "d")
	f.Domains["d"][0].FromEpoch = 10
	if _, ok := f.EpochKey("d", 9); ok {
		t.Error("a key for an epoch before the first entry")
	}
	if _, ok := f.EpochKey("other", 10); ok {
		t.Error("a key for an unknown domain")
	}
}

func TestRotationMustComeAfterEveryOther(t *testing.T) {
	f := newFile(t, "d")
	rotate(t, f, "d", 100, cookie.SipHash)
	for _, from := range []uint64{0, 99, 100} {
		if err := f.Rotate("d", from, cookie.SipHash, 7, randomBytes()); err == nil {
			t.Errorf("rotated from epoch %d, before the entry of epoch 100", from)
		}
	}
	if err := f.Rotate("d", 1<<60, cookie.SipHash, 7, randomBytes()); err == nil {
		t.Error("rotated after the year 9999")
	}
	if n := len(f.Domains["d"]); n != 2 {
		t.Errorf("%d entries", n)
	}
}

func TestExportHoldsOneDomainOnly(t *testing.T) {
	f := newFile(t, "web", "mail")
	out, err := f.Export("web")
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Domains) != 1 || out.EpochSeconds != f.EpochSeconds {
		t.Errorf("exported %+v", out)
	}
	if strings.Contains(string(out.Text()), f.Domains["mail"][0].Secret.base64()) {
		t.Error("the key of another domain is exported")
	}
	want, _ := f.EpochKey("web", 5)
	if got, ok := out.EpochKey("web", 5); !ok || got != want {
		t.Error("the exported key is another")
	}
	if _, err := f.Export("none"); err == nil {
		t.Error("exported an unknown domain")
	}
}

func TestPruneKeepsWhatAnyHostMayAccept(t *testing.T) {
	for _, c := range []struct {
		epoch uint64
		want  []uint32 // ids that stay
	}{
		{0, []uint32{1, 2, 3}},
		{102, []uint32{1, 2, 3}}, // a host an epoch behind is in 101 and accepts 99
		{103, []uint32{2, 3}},
		{202, []uint32{2, 3}},
		{203, []uint32{3}},
		{1 << 40, []uint32{3}},
	} {
		f := newFile(t, "d")
		rotate(t, f, "d", 100, cookie.SipHash)
		rotate(t, f, "d", 200, cookie.SipHash)
		pruned := f.Prune(c.epoch)
		var ids []uint32
		for _, e := range f.Domains["d"] {
			ids = append(ids, e.ID)
		}
		if fmt.Sprint(ids) != fmt.Sprint(c.want) || pruned != 3-len(c.want) {
			t.Errorf("epoch %d: %v stay, want %v; %d pruned", c.epoch, ids, c.want, pruned)
		}
	}
}

func TestDomainsAreBoundedAndWellNamed(t *testing.T) {
	f := newFile(t, "d")
	for _, name := range []string{"", "D", "a b", "ä", "a_b", "d", strings.Repeat("a", 33)} {
		if err := f.AddDomain(name, cookie.SipHash, 7, randomBytes()); err == nil {
			t.Errorf("added domain %q", name)
		}
	}
	for i := 1; i < DomainsMax; i++ {
		if err := f.AddDomain(fmt.Sprintf("d-%d", i), cookie.SipHash, 7, randomBytes()); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.AddDomain("one-more", cookie.SipHash, 7, randomBytes()); err == nil {
		t.Error("added a domain beyond the limit")
	}
}

func TestEpochLengthAndScaleAreBounded(t *testing.T) {
	for _, s := range []uint32{0, 65} {
		if _, err := New(s); err == nil {
			t.Errorf("epoch of %d s", s)
		}
	}
	f := newFile(t)
	if err := f.AddDomain("d", cookie.SipHash, 15, randomBytes()); err == nil {
		t.Error("window scale 15")
	}
}

func TestEpochsAreCountedSince1970(t *testing.T) {
	f := newFile(t, "d")
	at := time.Date(2026, 1, 1, 0, 0, 7, 0, time.UTC)
	if got := f.Epoch(at); got != 1767225607/8 {
		t.Errorf("epoch %d", got)
	}
	if got := f.Epoch(time.Unix(-1, 0)); got != 0 {
		t.Errorf("before 1970: epoch %d", got)
	}
	if start := f.EpochStart(f.Epoch(at)); at.Sub(start) < 0 || at.Sub(start) >= 8*time.Second {
		t.Errorf("%v is in the epoch of %v", at, start)
	}
}

func TestEveryEpochOfThreeDaysHasAKeyOfItsOwn(t *testing.T) {
	f := newFile(t, "d")
	seen := map[cookie.Key]bool{}
	for e := range uint64(72 * 3600 / 8) {
		slot, ok := f.EpochKey("d", e)
		if !ok || seen[slot.Key] {
			t.Fatalf("epoch %d has no key of its own", e)
		}
		seen[slot.Key] = true
	}
}

// 259,200 epochs of 1 s are the three days that a kernel is given in advance.
func BenchmarkEpochKey(b *testing.B) {
	f, err := New(1)
	if err != nil {
		b.Fatal(err)
	}
	if err := f.AddDomain("d", cookie.SipHash, 7, randomBytes()); err != nil {
		b.Fatal(err)
	}
	for e := uint64(0); b.Loop(); e++ {
		f.EpochKey("d", e)
	}
}

func TestDomainLimitIsThatOfTheContract(t *testing.T) {
	header, err := os.ReadFile("../../contract/contract.h")
	if err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf(`(?m)^\s*DOMAINS_MAX\s*=\s*%d,`, DomainsMax)
	if !regexp.MustCompile(line).Match(header) {
		t.Errorf("contract.h has another limit than %d", DomainsMax)
	}
}
