// Package lab builds a small network out of namespaces on one machine (client,
// attacker, edge and server), floods it and measures what a defence saves.
//
// The lab command shows it to people and the end-to-end tests stand on it.
// Everything it makes carries the process id of its owner in its name, so that
// Sweep can tell what a crashed lab has left behind.
package lab
