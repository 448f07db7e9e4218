package cli

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is what `make build` stamps; without it the module's is shown.
var version string

func newVersionCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return fmt.Errorf("read build information: the program was built without modules")
			}
			_, err := fmt.Fprintln(env.stdout, versionLine(info))
			return err
		},
	}
}

// versionLine names the version and the toolchain. A version that is not stamped is
// the module's, with the revision that it was built from if that is known.
func versionLine(info *debug.BuildInfo) string {
	if version != "" {
		return "smartcookie " + version + " " + info.GoVersion
	}
	line := "smartcookie " + info.Main.Version
	setting := map[string]string{}
	for _, s := range info.Settings {
		setting[s.Key] = s.Value
	}
	if revision := setting["vcs.revision"]; revision != "" {
		line += " revision " + revision
		if setting["vcs.modified"] == "true" {
			line += " with changes"
		}
	}
	return line + " " + info.GoVersion
}
