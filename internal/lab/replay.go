package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"smartcookie/internal/traffic"
)

// StartReplay starts benign clients that make a schedule's flows from its beginning
// on, as StartLoad does: a connection each, and a request for its bytes. URL, Rate
// and Duration are the schedule's if they are not given.
func (l *Lab) StartReplay(ctx context.Context, schedule traffic.Schedule, options LoadOptions) (*Load, error) {
	if len(schedule) == 0 {
		return nil, errors.New("replay: no flow in the schedule")
	}
	text, err := json.Marshal(schedule)
	if err != nil {
		return nil, fmt.Errorf("encode the replay: %w", err)
	}
	if options.Replay, err = l.WriteFile("replay.json", string(text)); err != nil {
		return nil, err
	}
	if options.URL == "" {
		options.URL = l.URL(false)
	}
	last := schedule[len(schedule)-1].Start
	if options.Rate == 0 {
		options.Rate = int(math.Ceil(float64(len(schedule)) / max(last, time.Second).Seconds()))
	}
	if options.Duration == 0 {
		options.Duration = last + time.Second
	}
	return l.StartLoad(ctx, options)
}

// replayed reads the schedule; nil: requests come at a rate.
func (o *LoadOptions) replayed() (traffic.Schedule, error) {
	if o.Replay == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.Replay)
	if err != nil {
		return nil, fmt.Errorf("read the replay: %w", err)
	}
	var flows traffic.Schedule
	if err := json.Unmarshal(text, &flows); err != nil {
		return nil, fmt.Errorf("read the replay: %w", err)
	}
	return flows, nil
}

// wanted is how many requests should have been made by a time, of which so many
// have.
func (o *LoadOptions) wanted(flows traffic.Schedule, issued int, at time.Duration) int {
	if flows == nil {
		return int(min(at, o.Duration).Seconds() * float64(o.Rate)) // what comes late, with the end, is no more
	}
	later := slices.IndexFunc(flows[issued:], func(f traffic.Flow) bool { return f.Start > at })
	if later < 0 {
		return len(flows)
	}
	return issued + later
}

// request is the n-th one.
func (o *LoadOptions) request(flows traffic.Schedule, n int) visit {
	v := o.visit(n)
	if flows != nil {
		v.page = strconv.FormatInt(flows[n].Bytes, 10)
	}
	return v
}
