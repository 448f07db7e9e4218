package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A transaction is what netperf's TCP_CRR makes: connect, a byte there, a byte
// back, close in order, and at once again.

// TransactionOptions say what the clients do.
type TransactionOptions struct {
	Server netip.AddrPort
	Flows  int           // clients, each with one connection at a time
	Limit  time.Duration // they end by themselves after this
	// Counter is the file that the clients count in; StartTransactions sets it.
	Counter string
}

// Transactions are clients and their server at work, on one CPU.
type Transactions struct {
	clients, server *Process
	count           *counter
}

// StartTransactions starts a server in a namespace, and clients of it where the
// flood comes from, so that both meet the same queue of the same port. Both run
// on the CPU of LoadCPU.
func (l *Lab) StartTransactions(ctx context.Context, at *Namespace, options TransactionOptions) (t *Transactions, err error) {
	options.Counter = filepath.Join(l.Dir(), "transactions")
	t = &Transactions{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Stop())
		}
	}()
	if err := os.WriteFile(options.Counter, make([]byte, counterSize), 0o600); err != nil {
		return t, fmt.Errorf("make the counter of transactions: %w", err)
	}
	if t.count, err = openCounter(options.Counter); err != nil {
		return t, err
	}
	encoded, err := json.Marshal(options)
	if err != nil {
		return t, fmt.Errorf("encode the transactions: %w", err)
	}
	one := []int{l.LoadCPU()}
	if t.server, err = l.startOn(ctx, one, at, "answers", childCommand, childGroup, childAnswer); err != nil {
		return t, err
	}
	t.clients, err = l.startOn(ctx, one, l.Attacker.Namespace, "transactions", childCommand, childGroup, childTransact, string(encoded))
	return t, err
}

// Count is how many transactions are complete. It is right at any time, even if
// the clients do not get to run.
func (t *Transactions) Count() uint64 { return t.count.value.Load() }

// Stop ends clients and server.
func (t *Transactions) Stop() error {
	var errs []error
	for _, process := range []*Process{t.clients, t.server} {
		if process != nil {
			errs = append(errs, process.Kill())
		}
	}
	if t.count != nil {
		errs = append(errs, t.count.close())
	}
	t.clients, t.server, t.count = nil, nil, nil
	return errors.Join(errs...)
}

// counter is a number that two processes see.
type counter struct {
	memory []byte
	value  *atomic.Uint64
}

const counterSize = 8

func openCounter(path string) (*counter, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the counter of transactions: %w", err)
	}
	defer file.Close()
	memory, err := unix.Mmap(int(file.Fd()), 0, counterSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("share the counter of transactions: %w", err)
	}
	return &counter{memory, (*atomic.Uint64)(unsafe.Pointer(&memory[0]))}, nil
}

func (c *counter) close() error {
	c.value = nil
	if err := unix.Munmap(c.memory); err != nil {
		return fmt.Errorf("let go of the counter of transactions: %w", err)
	}
	return nil
}

// RunTransactions is the life of the clients.
func RunTransactions(ctx context.Context, options TransactionOptions, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, options.Limit)
	defer cancel()
	count, err := openCounter(options.Counter)
	if err != nil {
		return err
	}
	var clients sync.WaitGroup
	for range options.Flows {
		clients.Go(func() {
			for ctx.Err() == nil {
				if transact(ctx, options.Server) == nil {
					count.value.Add(1)
				}
			}
		})
	}
	log.Info("ready", "flows", options.Flows)
	clients.Wait()
	return count.close()
}

// transact waits as long as its host's TCP does: a lost SYN costs a second.
func transact(ctx context.Context, server netip.AddrPort) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", server.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write([]byte{'?'}); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	// The client closes first, and waits until the server has closed, too.
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

// Answer is the life of the server of transactions.
func Answer(ctx context.Context, log *slog.Logger) error {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel refuses to adopt cookies for MPTCP
	listener, err := config.Listen(ctx, "tcp", fmt.Sprintf(":%d", HTTPPort))
	if err != nil {
		return fmt.Errorf("listen for transactions: %w", err)
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	log.Info("ready", "address", listener.Addr())
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a transaction: %w", err)
		}
		go answer(conn)
	}
}

// answer closes behind the client, which so keeps what a closed connection leaves.
// What becomes of a client that has gone is its own affair.
func answer(conn net.Conn) {
	defer conn.Close()
	var request [1]byte
	if _, err := io.ReadFull(conn, request[:]); err != nil {
		return
	}
	if _, err := conn.Write(request[:]); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, conn)
}
