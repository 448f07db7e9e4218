package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/keys"
	"smartcookie/internal/lab"
)

// defendKernel lets the edge's own kernel listen, directly on the flood's link.
func defendKernel(syncookies string) func(context.Context, *contender) error {
	return func(_ context.Context, c *contender) error {
		c.local = true
		if err := c.lab.Edge.Sysctl("net.ipv4.tcp_syncookies", syncookies); err != nil {
			return err
		}
		server, err := c.listen()
		if err != nil {
			return err
		}
		c.onStop(server.Close)
		return nil
	}
}

// listen serves HTTP in the edge's namespace.
func (c *contender) listen() (*http.Server, error) {
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello")
	})}
	return server, c.lab.Edge.Do(func() error {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		listener, err := config.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", lab.HTTPPort))
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		go server.Serve(listener) // ends with Close
		return nil
	})
}

// defendNothing has no listener yet: each flood is to find an empty queue.
func defendNothing(_ context.Context, c *contender) error {
	c.local = true
	return errors.Join(
		c.lab.Edge.Sysctl("net.ipv4.tcp_syncookies", "0"),
		// Else a client that the kernel has met is let through a full queue.
		c.lab.Edge.Sysctl("net.ipv4.tcp_no_metrics_save", "1"))
}

// defendSynproxy puts netfilter's SYN proxy before the kernel's listener.
func defendSynproxy(ctx context.Context, c *contender) error {
	if err := defendKernel("1")(ctx, c); err != nil {
		return err
	}
	scale, err := windowScale(c.lab.Edge.Namespace)
	if err != nil {
		return err
	}
	// The lab takes the table away with its namespace.
	_, err = startSynproxy(ctx, c.lab.Edge.Namespace, "input", netip.AddrPortFrom(c.target(false), lab.HTTPPort), scale)
	return err
}

// defendHost runs the host shape on the edge itself, which serves.
func defendHost(args ...string) func(context.Context, *contender) error {
	return func(ctx context.Context, c *contender) error {
		if err := defendKernel("2")(ctx, c); err != nil {
			return err
		}
		if err := c.lab.Edge.Sysctl("net.ipv4.tcp_timestamps", "2"); err != nil {
			return err
		}
		args := append([]string{"host", c.floodPort(), "--ports", fmt.Sprint(lab.HTTPPort), "--mode", "always", "--pin", c.lab.PinDir(hostAgent)}, args...)
		return c.keep(ctx, func(ctx context.Context) (func() error, error) { return c.startHost(ctx, args) })
	}
}

const hostAgent = "host"

func (c *contender) startHost(ctx context.Context, args []string) (func() error, error) {
	process, err := c.lab.Start(ctx, c.lab.Edge.Namespace, hostAgent, args...)
	if err != nil {
		return nil, err
	}
	return func() error {
		ended := process.Stop()
		_, err := dataplane.Detach(c.lab.PinDir(hostAgent))
		return errors.Join(ended, err)
	}, nil
}

// keep starts daemons, which are stopped at the end, and have their places taken by
// others now and then.
func (c *contender) keep(ctx context.Context, start func(context.Context) (stop func() error, err error)) error {
	stop, err := start(ctx)
	if err != nil {
		return err
	}
	c.onStop(func() error { return stop() })
	c.replace = func(ctx context.Context) error {
		old := stop
		stop = func() error { return nil }
		if err := old(); err != nil {
			return err
		}
		again, err := start(ctx)
		if err != nil {
			return err
		}
		stop = again
		return c.prove()
	}
	return nil
}

func (c *contender) floodPort() string { return c.lab.Edge.Outside[1] }

// defendBy runs one of the lab's defences, with keys for this hash.
func defendBy(name string, hash cookie.Hash) func(context.Context, *contender) error {
	return func(ctx context.Context, c *contender) error {
		path, err := c.lab.Keys()
		if err != nil {
			return err
		}
		if err := rekey(path, hash); err != nil {
			return err
		}
		server, err := c.lab.StartServer(ctx)
		if err != nil {
			return err
		}
		c.onStop(server.Stop)
		return c.keep(ctx, func(ctx context.Context) (func() error, error) {
			guard, err := c.lab.Defend(ctx, name)
			if err != nil {
				return nil, err
			}
			return guard.Stop, nil
		})
	}
}

// rekey replaces the keys of a file by such for a hash.
func rekey(path string, hash cookie.Hash) error {
	old, err := keys.Read(path)
	if err != nil {
		return err
	}
	file, err := keys.New(old.EpochSeconds)
	if err != nil {
		return err
	}
	for domain, entries := range old.Domains {
		if err := file.AddDomain(domain, hash, entries[0].WindowScale, rand.Reader); err != nil {
			return err
		}
	}
	return file.Write(path)
}

// defendVariant is our edge with another cookie, or another way out. It has no
// server agent: that could not read the cookie.
func defendVariant(v variant) func(context.Context, *contender) error {
	return func(_ context.Context, c *contender) error {
		b, err := newLabBench(c.lab, v)
		if err != nil {
			return err
		}
		c.onStop(func() error { b.close(); return nil })
		c.attachAnew(edgeProgram, func() (*ebpf.Collection, error) { return b.loadOne(v, edgeProgram) })
		return nil
	}
}

const edgeProgram = "edge"

// defendNetdev is the benchmark program of the Netdev 2020 paper.
func defendNetdev(ctx context.Context, c *contender) error {
	if err := defendKernel("2")(ctx, c); err != nil {
		return err
	}
	c.attachAnew("netdev", func() (*ebpf.Collection, error) { return loadOne(loadNetdev, "netdev") })
	return nil
}

// defendFloor answers by a program of ours that looks at nothing.
func defendFloor(name string) func(context.Context, *contender) error {
	return func(_ context.Context, c *contender) error {
		c.attachAnew(name, func() (*ebpf.Collection, error) { return loadOne(loadOurs, name) })
		return nil
	}
}

func defendSwap(ctx context.Context, c *contender) error {
	c.drops = true
	return defendFloor("swap")(ctx, c)
}

func defendDrop(_ context.Context, c *contender) error { return c.lab.Edge.Drop(c.floodPort()) }

// attachAnew has a program loaded and put on the flood's port for each flood.
func (c *contender) attachAnew(name string, load func() (*ebpf.Collection, error)) {
	c.place = func() (func() error, error) {
		fresh, err := load()
		if err != nil {
			return nil, err
		}
		attached, err := c.attach(fresh.Programs[name])
		if err != nil {
			fresh.Close()
			return nil, err
		}
		return func() error {
			defer fresh.Close()
			return attached.Close()
		}, nil
	}
}

func (c *contender) attach(prog *ebpf.Program) (l link.Link, err error) {
	err = c.lab.Edge.Do(func() error {
		port, err := net.InterfaceByName(c.floodPort())
		if err != nil {
			return fmt.Errorf("find the flood's port: %w", err)
		}
		if l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: port.Index, Flags: link.XDPDriverMode}); err != nil {
			return fmt.Errorf("attach XDP: %w", err)
		}
		return nil
	})
	return l, err
}
