package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"smartcookie/internal/lab"
)

// echoChild makes the test binary an echo server, see startChild.
const echoChild = "e2e-child-echo"

// runChild is the life of a test binary that startChild has started.
func runChild(args []string) {
	if len(args) != 2 || args[1] != echoChild {
		return
	}
	failed := make(chan error)
	for _, port := range []int{echoPort, translatedPort} {
		go func() { failed <- echoAt(port) }()
	}
	fmt.Println(<-failed)
	os.Exit(1)
}

// echoAt sends everything back that comes to a port.
func echoAt(port int) error {
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(false)
	listener, err := config.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			// Two connections would be spliced, by a pipe each: three files.
			plain := struct{ io.Reader }{conn}
			_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, plain, make([]byte, 1024)) // how it ends, the client finds out
		}()
	}
}

// startChild runs the test binary as something else until the test ends.
func startChild(t *testing.T, at *lab.Namespace, what string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := at.Command(context.Background(), self, what)
	child.Stdout, child.Stderr = os.Stderr, os.Stderr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait() // killed, as we meant it
	})
}

// daemonWith is a daemon of a kind with a configuration of its own. Each edit
// is an old and a new piece of it.
func daemonWith(t *testing.T, l *lab.Lab, at *lab.Namespace, name, kind, text string, edits ...string) *daemon {
	t.Helper()
	file := fileOf(t, l, name+".yaml", strings.NewReplacer(edits...).Replace(text))
	return &daemon{lab: l, at: at, name: name, args: []string{kind, "-c", file}}
}
