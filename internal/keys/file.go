// Package keys has the key file on which all edges and servers of a fleet
// agree, the epoch keys that derive from it, and the clock of the epochs.
package keys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"smartcookie/internal/cookie"
)

// Limits of a key file.
const (
	EpochSecondsMax = 64
	// EpochSeconds is the default. A client whose line dies behind the SYN-ACK repeats
	// its data 13.5 s later, after outages of up to 10 s (docs/loss.md).
	EpochSeconds   = 16
	DomainsMax     = 64 // DOMAINS_MAX of contract.h
	WindowScaleMax = 14 // RFC 7323 2.3
)

// lastTime bounds epochs, so that each can be shown as a time (RFC 3339).
var lastTime = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// File is the content of a key file.
type File struct {
	EpochSeconds uint32
	Domains      map[string][]Entry // each ascending by FromEpoch
}

// Entry is a domain key and all that changes with it. It is in force from the
// start of FromEpoch until the next entry of its domain.
type Entry struct {
	ID          uint32
	FromEpoch   uint64
	Hash        cookie.Hash
	WindowScale uint8 // of the servers, announced in the SYN-ACK
	Secret      Secret
}

// New returns a file without domains. The epoch is 1 to 64 seconds long.
func New(epochSeconds uint32) (*File, error) {
	if epochSeconds < 1 || epochSeconds > EpochSecondsMax {
		return nil, fmt.Errorf("epoch of %d s: use 1 to %d", epochSeconds, EpochSecondsMax)
	}
	return &File{EpochSeconds: epochSeconds, Domains: map[string][]Entry{}}, nil
}

var domainName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// AddDomain adds a domain with a random key that is in force from epoch 0.
func (f *File) AddDomain(name string, hash cookie.Hash, windowScale uint8, random io.Reader) error {
	if !domainName.MatchString(name) {
		return fmt.Errorf("domain %q: use 1 to 32 of a-z, 0-9 and -", name)
	}
	if _, ok := f.Domains[name]; ok {
		return fmt.Errorf("domain %s is there already", name)
	}
	if len(f.Domains) == DomainsMax {
		return fmt.Errorf("domain %s: a file holds %d domains at most", name, DomainsMax)
	}
	return f.append(name, Entry{ID: 1, Hash: hash, WindowScale: windowScale}, random)
}

// Rotate adds a random key to the domain, in force from an epoch later than
// that of every key that the domain has.
func (f *File) Rotate(domain string, fromEpoch uint64, hash cookie.Hash, windowScale uint8, random io.Reader) error {
	entries := f.Domains[domain]
	if len(entries) == 0 {
		return unknownDomain(domain)
	}
	last := entries[len(entries)-1]
	if fromEpoch <= last.FromEpoch {
		return fmt.Errorf("domain %s: key %d is in force from %s: choose a later time",
			domain, last.ID, f.EpochStart(last.FromEpoch).Format(time.RFC3339))
	}
	next := Entry{ID: last.ID + 1, FromEpoch: fromEpoch, Hash: hash, WindowScale: windowScale}
	return f.append(domain, next, random)
}

func (f *File) append(domain string, e Entry, random io.Reader) error {
	if e.WindowScale > WindowScaleMax {
		return fmt.Errorf("window scale %d: use 0 to %d", e.WindowScale, WindowScaleMax)
	}
	if e.FromEpoch > f.Epoch(lastTime) {
		return errors.New("epoch is beyond the year 9999")
	}
	secret, err := randomSecret(random)
	if err != nil {
		return err
	}
	e.Secret = secret
	f.Domains[domain] = append(f.Domains[domain], e)
	return nil
}

// Export returns a file with the one domain, for a server: if it is broken
// into, it cannot speak for others.
func (f *File) Export(domain string) (*File, error) {
	entries, ok := f.Domains[domain]
	if !ok {
		return nil, unknownDomain(domain)
	}
	return &File{f.EpochSeconds, map[string][]Entry{domain: slices.Clone(entries)}}, nil
}

func unknownDomain(name string) error { return fmt.Errorf("no domain %q in the key file", name) }

// Prune removes the entries of which no host accepts a cookie any more, and
// returns how many. Hosts may be an epoch behind the given one.
func (f *File) Prune(epoch uint64) int {
	keep := cookie.ServerWindow.Behind + cookie.ServerWindow.Ahead
	pruned := 0
	for domain, entries := range f.Domains {
		first := 0
		for first+1 < len(entries) && entries[first+1].FromEpoch+keep <= epoch {
			first++
		}
		f.Domains[domain] = slices.Clone(entries[first:])
		pruned += first
	}
	return pruned
}

// Epoch returns the epoch of a time; times before 1970 count as epoch 0.
func (f *File) Epoch(t time.Time) uint64 {
	return uint64(max(t.Unix(), 0)) / uint64(f.EpochSeconds)
}

// EpochStart returns when an epoch starts, in UTC.
func (f *File) EpochStart(epoch uint64) time.Time {
	return time.Unix(int64(epoch*uint64(f.EpochSeconds)), 0).UTC()
}

// EntryAt returns the domain's entry that is in force in the epoch.
func (f *File) EntryAt(domain string, epoch uint64) (Entry, bool) {
	for _, e := range slices.Backward(f.Domains[domain]) {
		if e.FromEpoch <= epoch {
			return e, true
		}
	}
	return Entry{}, false
}

// EpochKey derives the slot of an epoch, K_e of contract/cookie.md. There is
// none if the domain is unknown or has no entry as early as the epoch.
func (f *File) EpochKey(domain string, epoch uint64) (cookie.Slot, bool) {
	e, ok := f.EntryAt(domain, epoch)
	if !ok {
		return cookie.Slot{}, false
	}
	slot := cookie.Slot{Epoch: epoch, Hash: e.Hash, WindowScale: e.WindowScale}
	info := append(make([]byte, 0, 40), "smartcookie/1 cookie"...)
	info = append(info, byte(e.Hash))
	info = binary.BigEndian.AppendUint32(info, f.EpochSeconds)
	info = binary.BigEndian.AppendUint64(info, epoch)
	copy(slot.Key[:], e.Secret.expand(string(info), e.Hash.KeyLength()))
	return slot, true
}
