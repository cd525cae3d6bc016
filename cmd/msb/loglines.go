package main

import (
	"fmt"
	"strings"
	"time"
)

// logStream is one output of one command.
type logStream struct {
	source string
	id     string
}

// logLines puts output, which comes in pieces of all commands mixed, together to lines. A line has the time of its
// first piece.
type logLines struct {
	parts map[logStream]*entry // lines that are not complete yet
}

// maxLogStreams bounds the commands whose last line is waited for.
const maxLogStreams = 1024

// add gives out the lines that e completes.
func (l *logLines) add(e entry, out func(entry) error) error {
	key := logStream{e.Source, fmt.Sprint(e.ID)}
	for rest := e.Data; rest != ""; {
		line, more, whole := strings.Cut(rest, "\n")
		rest = more
		if whole {
			line += "\n"
		}
		part := l.parts[key]
		if part == nil {
			part = &entry{Time: e.Time, Source: e.Source, ID: e.ID}
		}
		part.Data += line
		if !whole && len(part.Data) < maxLogLine {
			if len(l.parts) >= maxLogStreams {
				if err := l.flush(out); err != nil {
					return err
				}
			}
			l.parts[key] = part
			break
		}
		delete(l.parts, key)
		if err := out(*part); err != nil {
			return err
		}
	}
	return nil
}

// flush gives out the lines that have no end.
func (l *logLines) flush(out func(entry) error) error {
	for key, part := range l.parts {
		delete(l.parts, key)
		if err := out(*part); err != nil {
			return err
		}
	}
	return nil
}

// logTime is the time that a line of msb's own processes carries, "" if it has none.
func logTime(line string) string {
	rest, ok := strings.CutPrefix(line, "time=")
	if !ok {
		return ""
	}
	at, _, _ := strings.Cut(rest, " ")
	if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
		return ""
	}
	return at
}

// inTime says whether what was written then is asked for. What has no time is, unless a time is asked for.
func (o *logsOptions) inTime(written string) bool {
	if !o.since.set() && !o.until.set() {
		return true
	}
	at, err := time.Parse(time.RFC3339Nano, written)
	if err != nil {
		return false
	}
	return (!o.since.set() || !at.Before(o.since.at)) && (!o.until.set() || !at.After(o.until.at))
}

// momentValue is a flag with a point in time: a duration is that long ago.
type momentValue struct{ at time.Time }

func (v *momentValue) set() bool    { return !v.at.IsZero() }
func (v *momentValue) Type() string { return "TIME" }
func (v *momentValue) String() string {
	if v.at.IsZero() {
		return ""
	}
	return v.at.Format(time.RFC3339)
}

// Set understands a time in full, one without a zone (this host's), a day, and a duration.
func (v *momentValue) Set(s string) error {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			v.at = at
			return nil
		}
	}
	var ago time.Duration
	if (durationValue{&ago}).Set(s) != nil {
		return fmt.Errorf("time %q is not understood: use something like 10m (ago), 2026-05-31T12:00:00 or 2026-05-31T12:00:00Z", s)
	}
	v.at = time.Now().Add(-ago)
	return nil
}
