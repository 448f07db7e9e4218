package bench

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"smartcookie/internal/filter"
)

// filtersKernel are the filters of bpf/bench_filter.bpf.c.
type filtersKernel struct {
	collection *ebpf.Collection
	programs   filtersPrograms
	key        filter.Key
	lines      uint64
}

// loadFiltersKernel loads them with so many lines in ours, and empty.
func loadFiltersKernel(lines int, key filter.Key, change ...func(*ebpf.CollectionSpec) error) (*filtersKernel, error) {
	spec, err := loadFilters()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	// The data plane's other maps are of no use to these programs.
	used := []string{"filter", "filter_lines", "paper_arrays", ".bss", ".rodata"}
	maps.DeleteFunc(spec.Maps, func(name string, _ *ebpf.MapSpec) bool { return !slices.Contains(used, name) })
	spec.Maps["filter_lines"].MaxEntries = uint32(lines)
	errs := []error{spec.Variables["filter_size"].Set(uint32(lines)), spec.Variables["paper_key"].Set(key)}
	for _, c := range change {
		errs = append(errs, c(spec))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("set up the filters: %w", err)
	}
	k := &filtersKernel{key: key, lines: uint64(lines)}
	if k.collection, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load the filters: %w", err)
	}
	if err := k.collection.Assign(&k.programs); err != nil {
		return nil, errors.Join(fmt.Errorf("find the filters' programs: %w", err), k.close())
	}
	return k, nil
}

func (k *filtersKernel) close() error {
	k.collection.Close()
	return k.programs.Close()
}

// turn lets the sweep have passed all lines so many times.
func (k *filtersKernel) turn(generation uint64) error {
	state := struct {
		Key      filter.Key
		Position uint64
	}{k.key, generation << 32}
	if err := k.collection.Maps["filter"].Put(uint32(0), state); err != nil {
		return fmt.Errorf("write the filter's state: %w", err)
	}
	return nil
}

// loopLimit is what bpf_loop does at most.
const loopLimit = 1 << 23

// run runs a program for flows by number.
func (k *filtersKernel) run(program *ebpf.Program, first, n uint64) error {
	for n > 0 {
		part := min(n, loopLimit)
		v := k.collection.Variables
		if err := errors.Join(v["first"].Set(first), v["count"].Set(part)); err != nil {
			return fmt.Errorf("number the flows: %w", err)
		}
		if _, err := program.Run(&ebpf.RunOptions{}); err != nil {
			return fmt.Errorf("run %s: %w", program, err)
		}
		first, n = first+part, n-part
	}
	return nil
}

// asker asks a filter of the kernel for flows by number.
func (k *filtersKernel) asker(program *ebpf.Program) func(first, n uint64) (uint64, error) {
	return func(first, n uint64) (found uint64, err error) {
		counter := k.collection.Variables["found"]
		if err := counter.Set(uint64(0)); err != nil {
			return 0, fmt.Errorf("write the count: %w", err)
		}
		if err := k.run(program, first, n); err != nil {
			return 0, err
		}
		if err := counter.Get(&found); err != nil {
			return 0, fmt.Errorf("read the count: %w", err)
		}
		return found, nil
	}
}

// writePapers gives the kernel's copy of the paper's filter the content of ours.
func (k *filtersKernel) writePapers(f *filter.Partitioned) error {
	memory, err := k.collection.Maps["paper_arrays"].Memory()
	if err != nil {
		return fmt.Errorf("map the arrays: %w", err)
	}
	if _, err := memory.WriteAt(f.Bytes(), 0); err != nil {
		return fmt.Errorf("write the arrays: %w", err)
	}
	return nil
}
