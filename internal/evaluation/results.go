package evaluation

import (
	"slices"
	"time"
)

// SchemaVersion is raised when results.schema.json changes.
const SchemaVersion = 1

// Results are a whole run: what results.json has and the report shows.
type Results struct {
	Schema      int       `json:"schema"`
	Effort      string    `json:"effort"`
	Traffic     string    `json:"traffic"` // benign, where experiments use it
	Machine     Machine   `json:"machine"`
	Started     time.Time `json:"started"`
	Ended       time.Time `json:"ended"`
	Experiments []Outcome `json:"experiments"`
}

// Outcome is what one experiment has shown.
type Outcome struct {
	ID         string    `json:"id"`
	Title      string    `json:"title"`
	Reproduces string    `json:"reproduces"`
	Question   string    `json:"question"`
	Planned    int       `json:"planned"`  // cells
	Measured   int       `json:"measured"` // of them, those of absent subjects included
	Notes      []string  `json:"notes"`
	Panels     []Panel   `json:"panels"`
	Absent     []Absence `json:"absent"`   // subjects that this machine does not have
	Failures   []Failure `json:"failures"` // cells that could not be measured
}

// Absence is a subject that was not measured, and why.
type Absence struct {
	Subject string `json:"subject"`
	Why     string `json:"why"`
}

// Failure is a cell that was tried in vain; the next run tries it again.
type Failure struct {
	Cell  string `json:"cell"`
	Error string `json:"error"`
}

// PanelKind is how a panel is drawn.
type PanelKind string

const (
	Bars  PanelKind = "bars"  // one value for each series
	Lines PanelKind = "lines" // values over X
)

// Panel is one plot and its table.
type Panel struct {
	ID     string    `json:"id"` // unique in the report, fit for a file's name
	Title  string    `json:"title"`
	Kind   PanelKind `json:"kind"`
	X      Axis      `json:"x"` // of bars: what the series are
	Y      Axis      `json:"y"`
	Better Better    `json:"better,omitempty"`
	Series []Series  `json:"series"`
	Note   string    `json:"note,omitempty"` // what a reader has to know to read it
}

// Better is which figures of a panel are good ones; empty: it is no race.
type Better string

const (
	Higher Better = "higher"
	Lower  Better = "lower"
)

// Axis has a label with its unit.
type Axis struct {
	Label string `json:"label"`
	Log   bool   `json:"log,omitempty"` // nothing stands before the smallest figure
	// Tail says that the values are percentiles: 90 to 99 takes as much room as 99
	// to 99.9.
	Tail bool `json:"tail,omitempty"`
}

// Series are the figures of one subject.
type Series struct {
	Subject string  `json:"subject"`
	Ours    bool    `json:"ours"`
	Points  []Point `json:"points"`
	// Paper is the paper's own figure, and what differs; nil: it has none.
	Paper *Paper `json:"paper,omitempty"`
}

// Point is one figure with its rounds.
type Point struct {
	X      float64   `json:"x"`
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Rounds []float64 `json:"rounds"`
}

// Paper is what a paper says of the same.
type Paper struct {
	Value   string `json:"value"` // with its unit
	Where   string `json:"where"`
	Differs string `json:"differs"`
}

// PointOf is the spread of rounds; false: there are none.
func PointOf(x float64, rounds []float64) (Point, bool) {
	if len(rounds) == 0 {
		return Point{}, false
	}
	sorted := slices.Sorted(slices.Values(rounds))
	return Point{X: x, Median: median(sorted), Min: sorted[0], Max: sorted[len(sorted)-1], Rounds: rounds}, true
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Bar is a series of one value, in a list of none if there are no rounds.
func Bar(subject string, ours bool, rounds []float64, paper *Paper) []Series {
	point, ok := PointOf(0, rounds)
	if !ok {
		return nil
	}
	return []Series{{Subject: subject, Ours: ours, Points: []Point{point}, Paper: paper}}
}
