package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// LoadOptions say what the benign clients do: HTTP requests, each over a
// connection of its own.
type LoadOptions struct {
	URL      string
	Rate     int           // requests per second, 200 if 0
	Workers  int           // requests under way at most, 512 if 0
	Timeout  time.Duration // of one request, 2 s if 0
	Duration time.Duration
}

func (o *LoadOptions) defaults() {
	if o.Rate == 0 {
		o.Rate = 200
	}
	if o.Workers == 0 {
		o.Workers = 512
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
}

// LoadReport is what became of the requests.
type LoadReport struct {
	Requests uint64            `json:"requests"`
	OK       uint64            `json:"ok"`
	P50      float64           `json:"p50_ms"` // of the requests that succeeded
	P99      float64           `json:"p99_ms"`
	Max      float64           `json:"max_ms"`
	Missed   uint64            `json:"missed"` // due, but all workers were busy
	Errors   map[string]uint64 `json:"errors"` // by kind
}

// reportEvery is how often a running load tells how it goes.
const reportEvery = 250 * time.Millisecond

// RunLoad makes the requests from the namespace it runs in and writes reports,
// one JSON object a line; the last one is complete.
func RunLoad(ctx context.Context, options LoadOptions, out io.Writer) error {
	options.defaults()
	record := &record{errors: map[string]uint64{}}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		drive(ctx, options, record)
	}()
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	encoder := json.NewEncoder(out)
	for {
		select {
		case <-finished:
			return encoder.Encode(record.report())
		case <-ticker.C:
			if err := encoder.Encode(record.report()); err != nil {
				return fmt.Errorf("report the load: %w", err)
			}
		}
	}
}

// drive hands due requests to the workers and returns when all are done.
func drive(ctx context.Context, options LoadOptions, record *record) {
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true},
		Timeout:   options.Timeout,
	}
	// Up to a tenth of a second of requests may wait for a worker.
	due := make(chan struct{}, max(1, options.Rate/10))
	var workers sync.WaitGroup
	for range options.Workers {
		workers.Go(func() {
			for range due {
				record.request(client, options.URL)
			}
		})
	}
	pace(ctx, options, due, record)
	close(due)
	workers.Wait()
}

func pace(ctx context.Context, options LoadOptions, due chan<- struct{}, record *record) {
	ctx, cancel := context.WithTimeout(ctx, options.Duration)
	defer cancel()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	begin := time.Now()
	for issued := 0; ; {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for want := int(now.Sub(begin).Seconds() * float64(options.Rate)); issued < want; issued++ {
				select {
				case due <- struct{}{}:
				default:
					record.miss()
				}
			}
		}
	}
}

// record collects the outcome of requests.
type record struct {
	mu        sync.Mutex
	latencies []time.Duration
	requests  uint64
	missed    uint64
	errors    map[string]uint64
}

func (r *record) request(client *http.Client, url string) {
	begin := time.Now()
	err := get(client, url)
	r.add(time.Since(begin), err)
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return nil
}

func (r *record) add(latency time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	if err != nil {
		r.errors[errorKind(err)]++
		return
	}
	r.latencies = append(r.latencies, latency)
}

func (r *record) miss() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missed++
}

func (r *record) report() LoadReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := LoadReport{
		Requests: r.requests,
		OK:       uint64(len(r.latencies)),
		Missed:   r.missed,
		Errors:   map[string]uint64{},
	}
	for kind, n := range r.errors {
		report.Errors[kind] = n
	}
	slices.Sort(r.latencies)
	report.P50 = quantile(r.latencies, 0.50)
	report.P99 = quantile(r.latencies, 0.99)
	report.Max = quantile(r.latencies, 1)
	return report
}

// quantile returns the smallest latency, in milliseconds, that the given share
// of them does not exceed. Sorted ascending; 0 if there is none.
func quantile(sorted []time.Duration, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(share*float64(len(sorted)) + 0.999999)
	at := sorted[max(1, min(rank, len(sorted)))-1]
	return float64(at.Microseconds()) / 1000
}

func errorKind(err error) string {
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	}
	return "other"
}

// Load is a load that runs in the client's namespace.
type Load struct {
	mu     sync.Mutex
	latest LoadReport
	done   chan struct{}
	err    error // valid once done is closed
}

// StartLoad starts the benign clients in a process of their own. It ends with
// the context, or when the duration is over and the last request is answered.
func (l *Lab) StartLoad(ctx context.Context, options LoadOptions) (*Load, error) {
	encoded, err := json.Marshal(options)
	if err != nil {
		return nil, fmt.Errorf("encode the load: %w", err)
	}
	command := l.Client.Command(ctx, l.options.Executable, childCommand, childGroup, childLoad, string(encoded))
	command.CPUs = l.cpus.others
	var complaint bytes.Buffer
	command.Stderr = &complaint
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("read from the load: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the load: %w", err)
	}
	load := &Load{done: make(chan struct{})}
	go load.follow(out, command, &complaint)
	return load, nil
}

func (l *Load) follow(out io.Reader, command *Command, complaint *bytes.Buffer) {
	defer close(l.done)
	decoder := json.NewDecoder(out)
	for {
		var report LoadReport
		if err := decoder.Decode(&report); err != nil {
			break // its end; how it ended says Wait
		}
		l.mu.Lock()
		l.latest = report
		l.mu.Unlock()
	}
	if err := command.Wait(); err != nil {
		l.err = fmt.Errorf("the load has ended early (%v): %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
}

// Report returns the latest figures.
func (l *Load) Report() LoadReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latest
}

// Done is closed when the load has ended.
func (l *Load) Done() <-chan struct{} { return l.done }

// Wait returns the complete figures once the load has ended.
func (l *Load) Wait() (LoadReport, error) {
	<-l.done
	return l.Report(), l.err
}

// URL returns the address of the lab's HTTP server.
func (l *Lab) URL(ipv6 bool) string {
	return "http://" + netip.AddrPortFrom(l.Server.Addr(ipv6), HTTPPort).String() + "/"
}
