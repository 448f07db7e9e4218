package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"smartcookie/internal/traffic"
)

// LoadOptions say what the benign clients do: HTTP requests, each over a
// connection of its own.
type LoadOptions struct {
	URL      string
	Rate     int           // requests per second, 200 if 0
	Workers  int           // requests under way at most, 512 if 0
	Timeout  time.Duration // of one request, 2 s if 0
	Duration time.Duration
	// Crowd is where the clients' addresses come from; the host's own if not
	// valid.
	Crowd netip.Prefix
	// Clients of a crowd come in batches, Rate if 0, and each makes so many
	// requests, 4 if 0: as far apart as it takes all of a batch to make one.
	Batch, Visits int
	// Skip is how many of the crowd have come before, in other loads.
	Skip int
	// Again sends a request once more whose connection was reset.
	Again bool
	// Replay is a file of traffic.Schedule: each flow a request, when it begins,
	// for as many bytes as it carries. Rate is its mean then.
	Replay string
}

func (o *LoadOptions) defaults() {
	if o.Rate == 0 {
		o.Rate = 200
	}
	if o.Workers == 0 {
		o.Workers = 512
	}
	if o.Batch == 0 {
		o.Batch = o.Rate
	}
	if o.Visits == 0 {
		o.Visits = 4
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
	Bytes    uint64            `json:"bytes"`  // that they brought
	Missed   uint64            `json:"missed"` // due, but all workers were busy
	Errors   map[string]uint64 `json:"errors"` // by kind
	// First is of each client's first request, Later of its others.
	First ContactReport `json:"first"`
	Later ContactReport `json:"again"`
}

// ContactReport is what became of some of the requests.
type ContactReport struct {
	Requests uint64  `json:"requests"`
	OK       uint64  `json:"ok"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	Repeated uint64  `json:"repeated"` // sent again, as their connection was reset
	// Percentiles that only so many requests can tell: 0 if fewer succeeded.
	P90   float64 `json:"p90_ms,omitempty"`    // 10
	P999  float64 `json:"p99_9_ms,omitempty"`  // 1,000
	P9999 float64 `json:"p99_99_ms,omitempty"` // 10,000
}

// reportEvery is how often a running load tells how it goes.
const reportEvery = 250 * time.Millisecond

// RunLoad makes the requests from the namespace it runs in and writes reports,
// one JSON object a line; the last one is complete.
func RunLoad(ctx context.Context, options LoadOptions, out io.Writer) error {
	options.defaults()
	flows, err := options.replayed()
	if err != nil {
		return err
	}
	record := &record{again: options.Again, errors: map[string]uint64{}}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		drive(ctx, options, flows, record)
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
func drive(ctx context.Context, options LoadOptions, flows traffic.Schedule, record *record) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dialAs}
	client := &http.Client{Transport: transport}
	// Up to a tenth of a second of requests may wait for a worker; flows may begin
	// many at once.
	backlog := max(1, options.Rate/10)
	if flows != nil {
		backlog = max(backlog, options.Workers)
	}
	due := make(chan visit, backlog)
	var workers sync.WaitGroup
	for range options.Workers {
		workers.Go(func() {
			for v := range due {
				record.request(client, options, v)
			}
		})
	}
	pace(ctx, options, flows, due, record)
	close(due)
	workers.Wait()
}

func pace(ctx context.Context, options LoadOptions, flows traffic.Schedule, due chan<- visit, record *record) {
	ctx, cancel := context.WithTimeout(ctx, options.Duration)
	defer cancel()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	begin := time.Now()
	for issued := 0; flows == nil || issued < len(flows); {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for want := options.wanted(flows, issued, now.Sub(begin)); issued < want; issued++ {
				select {
				case due <- options.request(flows, issued):
				default:
					record.miss()
				}
			}
		}
	}
}

// record collects the outcome of requests.
type record struct {
	again    bool
	mu       sync.Mutex
	contacts [2]contactRecord // first ones, later ones
	missed   uint64
	errors   map[string]uint64
}

type contactRecord struct {
	requests, repeated, bytes uint64
	latencies                 []time.Duration
}

// request makes one, and a second attempt if the first one was reset and that is
// asked for, as browsers and many programs do.
func (r *record) request(client *http.Client, options LoadOptions, v visit) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), visitKey{}, v), options.Timeout)
	defer cancel()
	begin, repeated := time.Now(), false
	bytes, err := get(ctx, client, options.URL+v.page)
	if err != nil && r.again && errorKind(err) == "reset" {
		repeated = true
		bytes, err = get(ctx, client, options.URL+v.page)
	}
	r.add(v, time.Since(begin), repeated, bytes, err)
}

// get returns how many bytes the answer had.
func get(ctx context.Context, client *http.Client, url string) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	bytes, err := io.Copy(io.Discard, response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", response.StatusCode)
	}
	return bytes, nil
}

func (r *record) add(v visit, latency time.Duration, repeated bool, bytes int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.contacts[1]
	if v.first {
		c = &r.contacts[0]
	}
	c.requests++
	if repeated {
		c.repeated++
	}
	if err != nil {
		r.errors[errorKind(err)]++
		return
	}
	c.bytes += uint64(bytes)
	c.latencies = append(c.latencies, latency)
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
		First: r.contacts[0].report(), Later: r.contacts[1].report(),
		Missed: r.missed, Errors: maps.Clone(r.errors),
	}
	all := slices.Concat(r.contacts[0].latencies, r.contacts[1].latencies)
	slices.Sort(all)
	report.Requests, report.OK = report.First.Requests+report.Later.Requests, uint64(len(all))
	report.Bytes = r.contacts[0].bytes + r.contacts[1].bytes
	report.P50, report.P99, report.Max = quantile(all, 0.50), quantile(all, 0.99), quantile(all, 1)
	return report
}

func (c *contactRecord) report() ContactReport {
	slices.Sort(c.latencies)
	return ContactReport{
		Requests: c.requests, OK: uint64(len(c.latencies)), Repeated: c.repeated,
		P50: quantile(c.latencies, 0.50), P99: quantile(c.latencies, 0.99), Max: quantile(c.latencies, 1),
		P90: tail(c.latencies, 10), P999: tail(c.latencies, 1_000), P9999: tail(c.latencies, 10_000),
	}
}

// tail returns what one latency of so many exceeds, in milliseconds. Sorted
// ascending; 0 if there are fewer.
func tail(sorted []time.Duration, of int) float64 {
	if len(sorted) < of {
		return 0
	}
	return quantile(sorted, 1-1/float64(of))
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
	return l.startLoad(ctx, l.Client.Namespace, l.cpus.others, options)
}

// StartLoadBesideFlood starts them where the flood comes from, so that both meet
// the same queue of the same port, and on the CPU of LoadCPU.
func (l *Lab) StartLoadBesideFlood(ctx context.Context, options LoadOptions) (*Load, error) {
	return l.startLoad(ctx, l.Attacker.Namespace, []int{l.LoadCPU()}, options)
}

func (l *Lab) startLoad(ctx context.Context, from *Namespace, cpus []int, options LoadOptions) (*Load, error) {
	encoded, err := json.Marshal(options)
	if err != nil {
		return nil, fmt.Errorf("encode the load: %w", err)
	}
	command := from.Command(ctx, l.options.Executable, childCommand, childGroup, childLoad, string(encoded))
	command.CPUs = cpus
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
