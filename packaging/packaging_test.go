// Package packaging has what surrounds the program where it is installed. Its tests
// hold the pieces against each other; test/package/run tries the whole.
package packaging

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"smartcookie/internal/config"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func all(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %v", pattern, files, err)
	}
	return files
}

// object is what we want to know of a Kubernetes object.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Data       map[string]string
	Spec       struct {
		Template struct {
			Spec struct {
				HostNetwork bool `yaml:"hostNetwork"`
				Containers  []struct {
					Args            []string
					SecurityContext struct {
						Privileged   bool
						ReadOnly     bool `yaml:"readOnlyRootFilesystem"`
						Capabilities struct{ Add, Drop []string }
					} `yaml:"securityContext"`
					VolumeMounts []struct {
						Name      string
						MountPath string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
			}
		}
	}
}

func manifest(t *testing.T, path string) map[string]object {
	t.Helper()
	objects := map[string]object{}
	decoder := yaml.NewDecoder(strings.NewReader(read(t, path)))
	for {
		var o object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil || o.APIVersion == "" || o.Kind == "" || o.Metadata.Name == "" {
			t.Fatalf("%s: %v: %+v", path, err, o)
		}
		objects[o.Kind] = o
	}
}

// unitCapabilities are those of the units, which all have the same, without the one by
// which a user who is not root opens root's files.
func unitCapabilities(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, path := range all(t, "systemd/*.service") {
		sets := regexp.MustCompile(`(?m)^(?:AmbientCapabilities|CapabilityBoundingSet)=(.+)$`).FindAllStringSubmatch(read(t, path), -1)
		if len(sets) != 2 {
			t.Fatalf("%s: %d lines with capabilities, want 2", path, len(sets))
		}
		for _, set := range sets {
			names := strings.Fields(strings.ReplaceAll(set[1], "CAP_", ""))
			if found != nil && !slices.Equal(names, found) {
				t.Errorf("%s: %v, another has %v", path, names, found)
			}
			found = names
		}
	}
	return slices.DeleteFunc(found, func(name string) bool { return name == "DAC_READ_SEARCH" })
}

func TestContainersHaveTheCapabilitiesOfTheUnitsAndSeeTheBPFFileSystem(t *testing.T) {
	want := unitCapabilities(t)
	spec := manifest(t, "kubernetes/server.yaml")["DaemonSet"].Spec.Template.Spec
	if !spec.HostNetwork || len(spec.Containers) != 1 {
		t.Fatalf("%+v", spec)
	}
	c := spec.Containers[0]
	security := c.SecurityContext
	if !slices.Equal(security.Capabilities.Add, want) || !slices.Equal(security.Capabilities.Drop, []string{"ALL"}) || security.Privileged || !security.ReadOnly {
		t.Errorf("%+v, want %v and nothing else", security, want)
	}
	paths := map[string]bool{}
	for _, m := range c.VolumeMounts {
		paths[m.MountPath] = true
	}
	if !paths["/sys/fs/bpf"] || !paths[c.Args[len(c.Args)-1]] {
		t.Errorf("%v: no BPF file system, or not what %v names", paths, c.Args)
	}
	var added []string
	for _, found := range regexp.MustCompile(`--cap-add ([A-Z_]+)`).FindAllStringSubmatch(read(t, "oci/Containerfile"), -1) {
		added = append(added, found[1])
	}
	if !slices.Equal(added, want) {
		t.Errorf("Containerfile: %v, want %v", added, want)
	}
}

// Nobody is asked for the device here, and no key file is read.
func TestServersConfigurationsAreValid(t *testing.T) {
	for name, text := range map[string]string{
		"example":    read(t, "etc/server.yaml.example"),
		"kubernetes": manifest(t, "kubernetes/server.yaml")["ConfigMap"].Data["server.yaml"],
	} {
		file := filepath.Join(t.TempDir(), "server.yaml")
		if err := os.WriteFile(file, []byte(strings.Replace(text, "[eth0]", "[lo]", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := config.ReadServer(file); err != nil || len(c.Services) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The units differ in what they start, and in nothing that confines it.
func TestUnitsConfineAlike(t *testing.T) {
	const begin = "\nUser="
	var rest, first string
	for _, path := range all(t, "systemd/*.service") {
		_, confinement, found := strings.Cut(read(t, path), begin)
		if !found {
			t.Fatalf("%s: no user", path)
		}
		if rest == "" {
			rest, first = confinement, path
		}
		if confinement != rest {
			t.Errorf("%s and %s differ below the user", path, first)
		}
	}
}

func TestUnitsNameDocumentsThatThePackageHas(t *testing.T) {
	for _, path := range all(t, "systemd/*.service") {
		for _, found := range regexp.MustCompile(`file:/usr/share/doc/smartcookie/(\S+)`).FindAllStringSubmatch(read(t, path), -1) {
			if _, err := os.Stat(filepath.Join("../docs", found[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}
