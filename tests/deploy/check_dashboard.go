// Checks a dashboard of Grafana on its input against the types that Grafana publishes for it, in the
// Go module grafana-foundation-sdk: every field must be known, and of its type. install_tools.sh
// builds the program; monitoring_test.py runs it:
//
//	check-dashboard < deploy/monitoring/grafana.json
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func check() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	// The types of each kind of panel and of query.
	plugins.RegisterDefaultPlugins()
	var board dashboard.Dashboard
	err = board.UnmarshalJSONStrict(text)
	// After a success it is an empty list.
	var found cog.BuildErrors
	if err != nil && !(errors.As(err, &found) && len(found) == 0) {
		return err
	}
	return board.Validate()
}

func main() {
	if err := check(); err != nil {
		fmt.Fprintln(os.Stderr, "check_dashboard:", err)
		os.Exit(1)
	}
}
