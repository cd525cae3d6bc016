package engine

import (
	"strings"
	"testing"
)

func TestEventQueueDropsTheOldest(t *testing.T) {
	q := NewEventQueue(2)
	for _, text := range []string{"one", "two", "three"} {
		q.Post(Event{Text: text})
	}
	q.Close()
	q.Close()
	q.Post(Event{Text: "late"})
	var got []string
	for e := range q.C() {
		if e.Time.IsZero() {
			t.Error("an event without a time")
		}
		got = append(got, e.Text)
	}
	if strings.Join(got, " ") != "two three" {
		t.Errorf("got %q", got)
	}
}
