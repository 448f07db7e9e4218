package control

// window remembers which counters of a session have been used, the last 1,024
// of them; older ones are refused (RFC 6479, 2).
type window struct {
	top  uint64 // the highest counter; counters begin at 1
	used [windowSize/64 + 1]uint64
}

// take says whether a counter is new, and uses it up.
func (w *window) take(counter uint64) bool {
	if counter == 0 || w.top >= windowSize && counter <= w.top-windowSize {
		return false
	}
	words := uint64(len(w.used))
	if counter > w.top {
		for i := uint64(1); i <= min(counter/64-w.top/64, words); i++ {
			w.used[(w.top/64+i)%words] = 0
		}
		w.top = counter
	}
	word, bit := &w.used[counter/64%words], uint64(1)<<(counter%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// only makes a counter the last that was used, and refuses all before it.
func (w *window) only(counter uint64) {
	w.top = counter
	for i := range w.used {
		w.used[i] = ^uint64(0)
	}
	// What lies beyond the top in its word is still to come.
	w.used[counter/64%uint64(len(w.used))] &= ^uint64(0) >> (63 - counter%64)
}
