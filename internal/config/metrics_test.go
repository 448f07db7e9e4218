package config

import (
	"errors"
	"net/netip"
	"testing"
)

func TestMetricsHaveAnAddressAndAPort(t *testing.T) {
	for value, want := range map[string]string{
		"127.0.0.1:9465": "127.0.0.1:9465", "0.0.0.0:1": "0.0.0.0:1",
		`"[::1]:9465"`: "[::1]:9465", `"[::]:65535"`: "[::]:65535",
	} {
		c, err := ReadServer(write(t, goodServer+"metrics: "+value+"\n"))
		if err != nil || c.Metrics != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, %v", value, c, err)
		}
	}
	for _, value := range []string{"9465", `":9465"`, "localhost:9465", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1", `"[::ffff:127.0.0.1]:9465"`, "http://127.0.0.1:9465"} {
		_, err := ReadServer(write(t, goodServer+"metrics: "+value+"\n"))
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Line == 0 {
			t.Errorf("%s: %v", value, err)
		}
	}
	c, err := ReadServer(write(t, goodServer))
	if err != nil || c.Metrics.IsValid() {
		t.Errorf("without: %v, %v", c.Metrics, err)
	}
}
