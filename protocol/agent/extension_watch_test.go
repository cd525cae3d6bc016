package agent

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func sampleEvents() WatchEventsPayload {
	return WatchEventsPayload{Seq: 1 << 40, Lost: true, Events: []WatchEvent{
		{Dir: 2, Name: []byte{0xff, 'n'}, Node: 1 << 33, Change: WatchData | WatchAttr},
		{Dir: 2, Name: []byte{}, Change: WatchMovedHere},
	}}
}

func TestWatchEventsRoundTrip(t *testing.T) {
	for name, want := range map[string]WatchEventsPayload{
		"events": sampleEvents(),
		"none":   {Seq: 1, Events: []WatchEvent{}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := EncodePayload(want)
			if err != nil {
				t.Fatal(err)
			}
			var got WatchEventsPayload
			if err := DecodePayload(p, &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

// The bytes of one message, as a reader of the documentation expects them.
func TestWatchEventsBytes(t *testing.T) {
	p, err := EncodePayload(WatchEventsPayload{Seq: 7, Events: []WatchEvent{{Dir: 2, Name: []byte("f"), Node: 12, Change: WatchCreated}}})
	if err != nil {
		t.Fatal(err)
	}
	const want = "\xa3\x63seq\x07\x64lost\xf4\x66events\x81\x84\x02\x41f\x0c\x04"
	if string(p) != want {
		t.Errorf("% x\nwant % x", p, want)
	}
}

func TestWatchEventsRefused(t *testing.T) {
	many := "\xa3\x63seq\x01\x64lost\xf4\x66events\x99\x02\x01" + strings.Repeat("\x84\x00\x40\x00\x00", MaxWatchEvents+1)
	for name, p := range map[string]string{
		"empty":         "",
		"not a map":     "\x80",
		"nothing in it": "\xa0",
		"no lost":       "\xa2\x63seq\x01\x66events\x80",
		"seq is text":   "\xa3\x63seq\x61a\x64lost\xf4\x66events\x80",
		"lost is null":  "\xa3\x63seq\x01\x64lost\xf6\x66events\x80",
		"short event":   "\xa3\x63seq\x01\x64lost\xf4\x66events\x81\x83\x02\x41f\x0c",
		"text as name":  "\xa3\x63seq\x01\x64lost\xf4\x66events\x81\x84\x02\x61f\x0c\x04",
		"too many":      many,
		"huge list":     "\xa3\x63seq\x01\x64lost\xf4\x66events\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
	} {
		t.Run(name, func(t *testing.T) {
			var got WatchEventsPayload
			if err := DecodePayload([]byte(p), &got); err == nil {
				t.Errorf("taken as %+v", got)
			}
		})
	}
}

func FuzzWatchEvents(f *testing.F) {
	p, _ := EncodePayload(sampleEvents())
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		var got, back WatchEventsPayload
		if DecodePayload(p, &got) != nil {
			return
		}
		again, err := EncodePayload(got)
		if err != nil {
			t.Fatal(err)
		}
		if err := DecodePayload(again, &back); err != nil || len(back.Events) != len(got.Events) || back.Seq != got.Seq {
			t.Fatalf("%v: %+v, %+v", err, got, back)
		}
		if third, _ := EncodePayload(back); !bytes.Equal(third, again) {
			t.Fatalf("% x\n% x", again, third)
		}
	})
}
