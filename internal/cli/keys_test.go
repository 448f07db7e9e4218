package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/keys"
)

// newKeyFile makes a key file with the flags given and returns its name.
func newKeyFile(t *testing.T, c *console, flags ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	c.mustRun(t, append([]string{"keys", "new", name}, flags...)...)
	return name
}

func readKeys(t *testing.T, name string) *keys.File {
	t.Helper()
	file, err := keys.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestNewKeyFileHasTheDefaults(t *testing.T) {
	file := readKeys(t, newKeyFile(t, newConsole()))
	entries := file.Domains["default"]
	if file.EpochSeconds != 16 || len(file.Domains) != 1 || len(entries) != 1 {
		t.Fatalf("%+v", file)
	}
	if e := entries[0]; e.ID != 1 || e.FromEpoch != 0 || e.Hash != cookie.SipHash || e.WindowScale != 7 {
		t.Errorf("%+v", e)
	}
}

func TestNewKeyFileHasADomainForEachFlag(t *testing.T) {
	name := newKeyFile(t, newConsole(), "--domain", "web", "--domain", "mail",
		"--hash", "halfsiphash-2-4", "--epoch", "64s", "--window-scale", "14")
	file := readKeys(t, name)
	if file.EpochSeconds != 64 || len(file.Domains) != 2 {
		t.Fatalf("%+v", file)
	}
	web, mail := file.Domains["web"][0], file.Domains["mail"][0]
	if web.Hash != cookie.HalfSipHash || mail.WindowScale != 14 {
		t.Errorf("web %+v, mail %+v", web, mail)
	}
	if web.Secret.Fingerprint() == mail.Secret.Fingerprint() {
		t.Error("both domains have the same key")
	}
}

func TestNewKeyFileNeverReplacesAnother(t *testing.T) {
	c := newConsole()
	name := newKeyFile(t, c)
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	c.wantError(t, exitError, "is there already", "keys", "new", name)
	if after, _ := os.ReadFile(name); string(after) != string(before) {
		t.Error("the file changed")
	}
}

func TestFlagsOfNewAreChecked(t *testing.T) {
	c := newConsole()
	name := filepath.Join(t.TempDir(), "keys")
	for _, flags := range [][]string{
		{"--hash", "crc32"}, {"--epoch", "0s"}, {"--epoch", "65s"}, {"--epoch", "-8s"}, {"--epoch", "1500ms"},
		{"--epoch", "1193046h28m24s"}, // 2^32 + 8 s
		{"--window-scale", "15"}, {"--domain", "Web"}, {"--domain", "a", "--domain", "a"},
	} {
		c.wantError(t, exitUsage, "", append([]string{"keys", "new", name}, flags...)...)
	}
	if _, err := os.Lstat(name); err == nil {
		t.Error("a file was made")
	}
}

func TestShowTellsEverythingButTheKey(t *testing.T) {
	c := newConsole()
	name := newKeyFile(t, c, "--domain", "web", "--domain", "mail")
	c.mustRun(t, "keys", "rotate", name, "--domain", "web", "--in", "1h", "--hash", "halfsiphash-2-4")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	secrets := regexp.MustCompile(`key: (\S+)`).FindAllStringSubmatch(string(text), -1)
	if len(secrets) != 3 {
		t.Fatalf("%d keys in the file", len(secrets))
	}
	for _, args := range [][]string{{"keys", "show", name}, {"keys", "show", name, "-o", "json"}} {
		c.mustRun(t, args...)
		for _, s := range secrets {
			if strings.Contains(c.stdout.String(), s[1]) {
				t.Errorf("%v shows a key", args)
			}
		}
	}
	var view keysView
	if err := json.Unmarshal(c.stdout.Bytes(), &view); err != nil {
		t.Fatal(err)
	}
	web := view.Domains[1]
	if view.EpochSeconds != 16 || view.Epoch != uint64(testNow.Unix())/16 || len(view.Domains) != 2 || web.Name != "web" {
		t.Fatalf("%+v", view)
	}
	want := keyEntryView{
		ID: 2, FromEpoch: view.Epoch + 225, From: "2026-03-01T13:00:16Z", Hash: "halfsiphash-2-4", WindowScale: 7,
		Fingerprint: readKeys(t, name).Domains["web"][1].Secret.Fingerprint(),
	}
	if !web.Keys[0].Current || web.Keys[1].Current {
		t.Errorf("current: %+v", web.Keys)
	}
	// 13:00:03 lies within an epoch: the key is in force from the next one.
	if want.FromEpoch++; web.Keys[1] != want {
		t.Errorf("%+v, want %+v", web.Keys[1], want)
	}
}

func TestShowTableNamesTheStateOfEachKey(t *testing.T) {
	c := newConsole()
	name := newKeyFile(t, c)
	c.mustRun(t, "keys", "rotate", name, "--in", "1h")
	c.mustRun(t, "keys", "rotate", name, "--in", "2h")
	at := testNow.Add(time.Hour + 20*time.Second)
	c.env.now = func() time.Time { return at }
	c.mustRun(t, "keys", "show", name)
	var states []string
	for line := range strings.Lines(c.stdout.String()) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "default" {
			states = append(states, fields[len(fields)-1])
		}
	}
	if got := strings.Join(states, " "); got != "past current next" {
		t.Errorf("states %s in\n%s", got, c.stdout.String())
	}
}

func TestShowChecksItsFormatAndFile(t *testing.T) {
	c := newConsole()
	name := newKeyFile(t, c)
	c.wantError(t, exitUsage, "use table or json", "keys", "show", name, "-o", "xml")
	c.wantError(t, exitUsage, "no such file", "keys", "show", name+"2")
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	c.wantError(t, exitUsage, "chmod 600", "keys", "show", name)
	if err := os.WriteFile(name, []byte("format: 1\nepoch_seconds: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o600); err != nil {
		t.Fatal(err)
	}
	c.wantError(t, exitUsage, name+":2: epoch of 0 s", "keys", "show", name)
}

func TestRotateKeepsHashAndScaleUnlessGiven(t *testing.T) {
	c := newConsole()
	name := newKeyFile(t, c, "--hash", "halfsiphash-2-4", "--window-scale", "9")
	c.mustRun(t, "keys", "rotate", name)
	c.mustRun(t, "keys", "rotate", name, "--in", "1h", "--hash", "siphash-2-4", "--window-scale", "0")
	entries := readKeys(t, name).Domains["default"]
	if len(entries) != 3 {
		t.Fatalf("%d entries", len(entries))
	}
	if e := entries[1]; e.ID != 2 || e.Hash != cookie.HalfSipHash || e.WindowScale != 9 {
		t.Errorf("%+v", e)
	}
	if e := entries[2]; e.ID != 3 || e.Hash != cookie.SipHash || e.WindowScale != 0 {
		t.Errorf("%+v", e)
	}
}

func TestRotationStartsAtTheFirstEpochNotBeforeTheTime(t *testing.T) {
	start := time.Unix(testNow.Unix()/16*16+800, 0).UTC() // of an epoch
	for offset, want := range map[time.Duration]time.Time{
		-time.Second:    start,
		0:               start,
		time.Nanosecond: start.Add(keys.EpochSeconds * time.Second),
		7 * time.Second: start.Add(keys.EpochSeconds * time.Second),
	} {
		c := newConsole()
		name := newKeyFile(t, c)
		c.mustRun(t, "keys", "rotate", name, "--at", start.Add(offset).Format(time.RFC3339Nano))
		file := readKeys(t, name)
		if got := file.EpochStart(file.Domains["default"][1].FromEpoch); !got.Equal(want) {
			t.Errorf("%v after the start of an epoch: from %v, want %v", offset, got, want)
		}
		if !strings.Contains(c.stdout.String(), want.Format(time.RFC3339)) {
			t.Errorf("%q does not name %v", c.stdout.String(), want)
		}
	}
}

func TestRotateRefusesWhatMakesNoSense(t *testing.T) {
	c := newConsole()
	one, two := newKeyFile(t, c), newKeyFile(t, c, "--domain", "web", "--domain", "mail")
	before, _ := os.ReadFile(one)
	for _, r := range []struct {
		part string
		args []string
	}{
		{"give --domain: the file has 2 domains", []string{two}},
		{`no domain "none"`, []string{one, "--domain", "none"}},
		{"not in the future", []string{one, "--in", "-1h"}},
		{"not in the future", []string{one, "--in", "0s"}},
		{"not in the future", []string{one, "--at", "2020-01-01T00:00:00Z"}},
		{"use a time like", []string{one, "--at", "tomorrow"}},
		{"not both", []string{one, "--in", "1h", "--at", "2030-01-01T00:00:00Z"}},
		{"--hash", []string{one, "--hash", "crc32"}},
		{"window scale 15", []string{one, "--window-scale", "15"}},
	} {
		c.wantError(t, exitUsage, r.part, append([]string{"keys", "rotate"}, r.args...)...)
	}
	if after, _ := os.ReadFile(one); string(after) != string(before) {
		t.Error("the file changed")
	}
	c.mustRun(t, "keys", "rotate", one, "--in", "2h")
	c.wantError(t, exitUsage, "choose a later time", "keys", "rotate", one, "--in", "1h")
}

func TestRotateRemovesKeysThatAreNoLongerAccepted(t *testing.T) {
	c := newConsole()
	name := newKeyFile(t, c)
	c.mustRun(t, "keys", "rotate", name, "--in", "1h")
	c.env.now = func() time.Time { return testNow.Add(2 * time.Hour) }
	c.mustRun(t, "keys", "rotate", name, "--in", "1h")
	entries := readKeys(t, name).Domains["default"]
	if len(entries) != 2 || entries[0].ID != 2 || entries[1].ID != 3 {
		t.Errorf("%+v", entries)
	}
}

func TestExportWritesOneDomain(t *testing.T) {
	c := newConsole()
	name := newKeyFile(t, c, "--domain", "web", "--domain", "mail")
	want := readKeys(t, name).Domains["web"][0].Secret.Fingerprint()

	c.mustRun(t, "keys", "export", name, "--domain", "web")
	onStdout, err := keys.Parse("stdout", c.stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "web")
	for range 2 { // the second time over the first
		c.mustRun(t, "keys", "export", name, "--domain", "web", "-o", out)
	}
	for _, file := range []*keys.File{onStdout, readKeys(t, out)} {
		if len(file.Domains) != 1 || file.Domains["web"][0].Secret.Fingerprint() != want {
			t.Errorf("%+v", file)
		}
	}
}

func TestExportRefusesWhatMakesNoSense(t *testing.T) {
	c := newConsole()
	name := newKeyFile(t, c, "--domain", "web", "--domain", "mail")
	c.wantError(t, exitUsage, "give --domain", "keys", "export", name)
	c.wantError(t, exitUsage, `no domain "none"`, "keys", "export", name, "--domain", "none")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{name, link} {
		c.wantError(t, exitUsage, "is the key file itself", "keys", "export", name, "--domain", "web", "-o", out)
	}
	if n := len(readKeys(t, name).Domains); n != 2 {
		t.Errorf("%d domains are left", n)
	}
}
