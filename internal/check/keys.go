package check

import (
	"fmt"
	"slices"
	"time"
)

func judgeKeys(f *Facts) (found []Finding) {
	k := &f.Keys
	if k.Err != nil {
		found = append(found, keyFile.finding(Error, k.Err.Error(), "FILE", k.Path))
	}
	if k.File == nil {
		return append(found, keyDomain.skip(), keyCurrent.skip(), keySpare.skip(), keyKernel.skip(), keyEpoch.skip())
	}
	for _, domain := range k.Domains {
		found = append(found, judgeDomain(k, domain)...)
	}
	for domain := range k.File.Domains {
		if f.Shape == Server && !slices.Contains(k.Domains, domain) {
			found = append(found, keySpare.finding(Warning,
				fmt.Sprintf("%s has the keys of domain %s too, which no service here names", k.Path, domain), "DOMAIN", k.Domains[0], "FILE", k.Path))
		}
	}
	fileEpoch := time.Duration(k.File.EpochSeconds) * time.Second
	switch {
	case f.Clock.Epoch == 0: // no agent, or it cannot be asked
		found = append(found, keyEpoch.skip())
	case f.Clock.Epoch != fileEpoch:
		found = append(found, keyEpoch.finding(Error, fmt.Sprintf("the file has epochs of %s, the agent counts such of %s", fileEpoch, f.Clock.Epoch)))
	}
	if k.Kernel == nil {
		found = append(found, keyKernel.skip())
	}
	return found
}

// judgeDomain names the fingerprint, which edges and servers can compare.
func judgeDomain(k *Keys, domain string) (found []Finding) {
	if _, ok := k.File.Domains[domain]; !ok {
		return []Finding{keyDomain.finding(Error, fmt.Sprintf("no key domain %q in %s", domain, k.Path), "DOMAIN", domain, "FILE", k.Path)}
	}
	entry, ok := k.File.EntryAt(domain, k.Epoch)
	if !ok {
		return []Finding{keyCurrent.finding(Error, fmt.Sprintf("domain %s has no key that is in force", domain), "FILE", k.Path)}
	}
	found = append(found, Finding{
		Name: keyCurrent.Name, Severity: OK,
		What: fmt.Sprintf("domain %s: key %d is in force, fingerprint %s", domain, entry.ID, entry.Secret.Fingerprint()),
	})
	switch k.Kernel[domain] {
	case otherKey:
		found = append(found, keyKernel.finding(Error, fmt.Sprintf("domain %s: the agent has another key of this epoch than the file", domain)))
	case noKey:
		found = append(found, keyKernel.finding(Error, fmt.Sprintf("domain %s: the agent has no key of this epoch", domain)))
	}
	return found
}

func judgeClock(f *Facts) (found []Finding) {
	if f.Shape != Edge && f.Shape != Server {
		return nil
	}
	c, epoch := &f.Clock, f.Clock.Epoch
	if f.Keys.File != nil {
		epoch = time.Duration(f.Keys.File.EpochSeconds) * time.Second
	}
	if !c.Synchronised {
		found = append(found, clockSync.finding(Warning, "the kernel's clock is not synchronised"))
	}
	switch {
	case epoch == 0 || !c.Synchronised: // its figures mean nothing
		found = append(found, clockError.skip())
	case 2*c.Estimated > epoch:
		found = append(found, clockError.finding(Error, fmt.Sprintf("the clock's error is about %s; an epoch has %s", c.Estimated, epoch)))
	case 2*c.Bound > epoch:
		found = append(found, clockError.finding(Warning, fmt.Sprintf("the clock's error may be %s; an epoch has %s", c.Bound, epoch)))
	}
	switch {
	case c.Epoch == 0:
		found = append(found, clockStep.skip())
	case c.Ahead.Abs() > c.Epoch/2:
		found = append(found, clockStep.finding(Error, fmt.Sprintf("real time is %s off the agent's clock, more than half an epoch", c.Ahead.Abs().Round(time.Millisecond))))
	}
	return found
}
