// Package badwire is a link between two network devices that loses, doubles,
// delays and reorders frames, for kernels without netem.
//
// Way is the pure part: it decides what becomes of a frame, from a seed and a
// clock that it is given. Wire moves frames between two devices by it.
package badwire
