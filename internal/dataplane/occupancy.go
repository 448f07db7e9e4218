package dataplane

import "sync"

// Occupancy is how full a table is, as whoever last walked all of it has seen.
type Occupancy struct {
	Table             string
	Entries, Capacity int
}

// occupancies are those of an agent; any goroutine may ask. To count at once would
// mean to walk what an attacker may have filled.
type occupancies struct {
	mu  sync.Mutex
	all map[string]Occupancy
}

func (o *occupancies) note(table string, entries int, capacity uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = make(map[string]Occupancy)
	}
	o.all[table] = Occupancy{table, entries, int(capacity)}
}

// Occupancies returns what is known.
func (o *occupancies) Occupancies() []Occupancy {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make([]Occupancy, 0, len(o.all))
	for _, one := range o.all {
		all = append(all, one)
	}
	return all
}
