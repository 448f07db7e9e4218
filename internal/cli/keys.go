package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"smartcookie/internal/cookie"
	"smartcookie/internal/keys"
)

func newKeysCommand(env *environment) *cobra.Command {
	return newGroupCommand("keys", "Make, show, rotate and export key files",
		newKeysNewCommand(env),
		newKeysShowCommand(env),
		newKeysRotateCommand(env),
		newKeysExportCommand(env),
	)
}

// keysNew are the flags of keys new.
type keysNew struct {
	domains     []string
	hash        string
	epoch       time.Duration
	windowScale uint8
}

func newKeysNewCommand(env *environment) *cobra.Command {
	var flags keysNew
	c := &cobra.Command{
		Use:   "new FILE",
		Short: "Make a key file with a random key for each domain",
		Args:  exactArgs("FILE"),
		RunE:  func(_ *cobra.Command, args []string) error { return flags.run(env, args[0]) },
	}
	c.Flags().StringArrayVar(&flags.domains, "domain", []string{"default"}, "key domain; give it again for more")
	c.Flags().StringVar(&flags.hash, "hash", cookie.SipHash.String(), hashUsage)
	c.Flags().DurationVar(&flags.epoch, "epoch", keys.EpochSeconds*time.Second, "length of an epoch, 1s to 64s")
	c.Flags().Uint8Var(&flags.windowScale, "window-scale", 7, windowScaleUsage)
	return c
}

const (
	hashUsage        = "siphash-2-4, or halfsiphash-2-4 if a switch takes part"
	windowScaleUsage = "window scale of the servers, 0 to 14"
)

func (k *keysNew) run(env *environment, name string) error {
	hash, err := cookie.ParseHash(k.hash)
	if err != nil {
		return usageErrorf("--hash: %w", err)
	}
	if k.epoch%time.Second != 0 || k.epoch < 0 || k.epoch > keys.EpochSecondsMax*time.Second {
		return usageErrorf("--epoch %v: use whole seconds, 1s to %ds", k.epoch, keys.EpochSecondsMax)
	}
	file, err := keys.New(uint32(k.epoch / time.Second))
	if err != nil {
		return usageErrorf("--epoch: %w", err)
	}
	for _, domain := range k.domains {
		if err := file.AddDomain(domain, hash, k.windowScale, env.random); err != nil {
			return &usageError{err}
		}
	}
	err = file.Create(name)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already: rotate its keys, or remove it first", name)
	}
	return err
}

func newKeysShowCommand(env *environment) *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "show FILE",
		Short: "Show what a key file holds, without any key",
		Args:  exactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			write, ok := map[string]func(io.Writer, keysView) error{"table": writeKeysTable, "json": writeJSON[keysView]}[format]
			if !ok {
				return usageErrorf("--output %q: use table or json", format)
			}
			file, err := keys.Read(args[0])
			if err != nil {
				return err
			}
			return write(env.stdout, viewKeys(file, env.now()))
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	return c
}

// keysView is what may be shown of a key file.
type keysView struct {
	EpochSeconds uint32          `json:"epoch_seconds"`
	Epoch        uint64          `json:"epoch"` // now
	Domains      []keyDomainView `json:"domains"`
}

type keyDomainView struct {
	Name string         `json:"name"`
	Keys []keyEntryView `json:"keys"`
}

type keyEntryView struct {
	ID          uint32 `json:"id"`
	FromEpoch   uint64 `json:"from_epoch"`
	From        string `json:"from"` // RFC 3339, UTC
	Hash        string `json:"hash"`
	WindowScale uint8  `json:"window_scale"`
	Fingerprint string `json:"fingerprint"`
	Current     bool   `json:"current"`
}

func viewKeys(file *keys.File, now time.Time) keysView {
	view := keysView{EpochSeconds: file.EpochSeconds, Epoch: file.Epoch(now)}
	for _, name := range slices.Sorted(maps.Keys(file.Domains)) {
		domain := keyDomainView{Name: name}
		current, ok := file.EntryAt(name, view.Epoch)
		for _, e := range file.Domains[name] {
			domain.Keys = append(domain.Keys, keyEntryView{
				ID:          e.ID,
				FromEpoch:   e.FromEpoch,
				From:        file.EpochStart(e.FromEpoch).Format(time.RFC3339),
				Hash:        e.Hash.String(),
				WindowScale: e.WindowScale,
				Fingerprint: e.Secret.Fingerprint(),
				Current:     ok && e.ID == current.ID,
			})
		}
		view.Domains = append(view.Domains, domain)
	}
	return view
}

func writeKeysTable(w io.Writer, view keysView) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "epoch %d of %d s\n\n", view.Epoch, view.EpochSeconds)
	fmt.Fprintln(table, "DOMAIN\tID\tFROM\tFROM EPOCH\tHASH\tSCALE\tFINGERPRINT\tSTATE")
	for _, domain := range view.Domains {
		for _, k := range domain.Keys {
			state := "past"
			if k.Current {
				state = "current"
			} else if k.FromEpoch > view.Epoch {
				state = "next"
			}
			fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\t%d\t%s\t%s\n",
				domain.Name, k.ID, k.From, k.FromEpoch, k.Hash, k.WindowScale, k.Fingerprint, state)
		}
	}
	return table.Flush()
}

func writeJSON[T any](w io.Writer, v T) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// keysRotate are the flags of keys rotate; hash and windowScale are those of
// the newest key unless given.
type keysRotate struct {
	domain      string
	at          string
	in          time.Duration
	hash        string
	windowScale uint8
	given       func(flag string) bool
}

func newKeysRotateCommand(env *environment) *cobra.Command {
	var flags keysRotate
	c := &cobra.Command{
		Use:   "rotate FILE",
		Short: "Add a random key that is in force from a later time on",
		Long: "Add a random key that is in force from a later time on, the start of the next\n" +
			"epoch after it, and remove keys of which no host accepts a cookie any more.\n" +
			"Every edge and server needs the file before that time.",
		Args: exactArgs("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			flags.given = c.Flags().Changed
			return flags.run(env, args[0])
		},
	}
	c.Flags().StringVar(&flags.domain, "domain", "", "key domain, if the file has several")
	c.Flags().StringVar(&flags.at, "at", "", "time from which the key is in force, RFC 3339")
	c.Flags().DurationVar(&flags.in, "in", 10*time.Minute, "the same, from now")
	c.Flags().StringVar(&flags.hash, "hash", "", hashUsage+" (default that of the newest key)")
	c.Flags().Uint8Var(&flags.windowScale, "window-scale", 0, windowScaleUsage+" (default that of the newest key)")
	return c
}

func (k *keysRotate) run(env *environment, name string) error {
	at, err := k.time(env.now())
	if err != nil {
		return err
	}
	file, err := keys.Read(name)
	if err != nil {
		return err
	}
	domain, err := k.chooseDomain(file)
	if err != nil {
		return err
	}
	entries := file.Domains[domain]
	newest := entries[len(entries)-1]
	hash, windowScale := newest.Hash, newest.WindowScale
	if k.given("hash") {
		if hash, err = cookie.ParseHash(k.hash); err != nil {
			return usageErrorf("--hash: %w", err)
		}
	}
	if k.given("window-scale") {
		windowScale = k.windowScale
	}
	fromEpoch := file.Epoch(at)
	if file.EpochStart(fromEpoch).Before(at) {
		fromEpoch++
	}
	if err := file.Rotate(domain, fromEpoch, hash, windowScale, env.random); err != nil {
		return &usageError{err}
	}
	file.Prune(file.Epoch(env.now()))
	if err := file.Write(name); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "domain %s: key %d from %s on, epoch %d: give every edge and server the file before\n",
		domain, newest.ID+1, file.EpochStart(fromEpoch).Format(time.RFC3339), fromEpoch)
	return err
}

// time returns when the operator wants the key to be in force.
func (k *keysRotate) time(now time.Time) (time.Time, error) {
	if k.given("at") && k.given("in") {
		return time.Time{}, usageErrorf("give --at or --in, not both")
	}
	at := now.Add(k.in)
	if k.given("at") {
		var err error
		if at, err = time.Parse(time.RFC3339, k.at); err != nil {
			return time.Time{}, usageErrorf("--at %q: use a time like %s", k.at, now.UTC().Format(time.RFC3339))
		}
	}
	if !at.After(now) {
		return time.Time{}, usageErrorf("%s is not in the future", at.UTC().Format(time.RFC3339))
	}
	return at, nil
}

func (k *keysRotate) chooseDomain(file *keys.File) (string, error) {
	names := slices.Sorted(maps.Keys(file.Domains))
	if k.domain == "" && len(names) == 1 {
		return names[0], nil
	}
	if k.domain == "" {
		return "", usageErrorf("give --domain: the file has %d domains", len(names))
	}
	if !slices.Contains(names, k.domain) {
		return "", usageErrorf("no domain %q in the key file", k.domain)
	}
	return k.domain, nil
}

func newKeysExportCommand(env *environment) *cobra.Command {
	var domain, out string
	c := &cobra.Command{
		Use:   "export FILE --domain DOMAIN",
		Short: "Write the key file of one domain, for its servers",
		Args:  exactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if domain == "" {
				return usageErrorf("keys export: give --domain")
			}
			return exportKeys(env, args[0], domain, out)
		},
	}
	c.Flags().StringVar(&domain, "domain", "", "key domain")
	c.Flags().StringVarP(&out, "output", "o", "", "file to write, mode 0600 (default stdout)")
	return c
}

func exportKeys(env *environment, name, domain, out string) error {
	file, err := keys.Read(name)
	if err != nil {
		return err
	}
	exported, err := file.Export(domain)
	if err != nil {
		return &usageError{err}
	}
	if out == "" {
		_, err := env.stdout.Write(exported.Text())
		return err
	}
	if sameFile(name, out) {
		return usageErrorf("--output %s: is the key file itself", out)
	}
	return exported.Write(out)
}

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}
