package dataplane

import (
	"testing"

	"smartcookie/internal/control"
)

// A walk over the sockets that failed is made up for: until then the table lacks
// what it would have added.
func TestFailedWalkGoesOverTheSocketsAgain(t *testing.T) {
	needRoot(t)
	s, err := LoadServer(nil, ServerConfig{
		Services: services, Table: compile(t, services), Domains: domains, Epochs: 100, Recent: 1000,
		Interfaces: []Interface{{Name: "lo", Index: 1}}, HearsEdges: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	walk := func() error { return s.Walk(func(control.Flow) {}) }
	round := func() uint32 {
		state, err := s.establishedState()
		if err != nil {
			t.Fatal(err)
		}
		return state.Round
	}
	iterator := s.objects.WalkConnections
	s.objects.WalkConnections = s.objects.ServerIngress // which is no iterator
	if err := walk(); err == nil {
		t.Fatal("sockets are walked by a program that is no iterator")
	}
	s.objects.WalkConnections = iterator
	failed := round()
	for i, want := range []uint32{failed + 1, failed + 1} { // once, and then the table
		if err := walk(); err != nil || round() != want {
			t.Errorf("walk %d: round %d, want %d: %v", i, round(), want, err)
		}
	}
}
