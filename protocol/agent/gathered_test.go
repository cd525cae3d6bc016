package agent

import (
	"bytes"
	"reflect"
	"testing"

	"msb/protocol/frame"
)

// What Gathered makes is the message that every decoder of the contract reads.
func TestGathered(t *testing.T) {
	for _, size := range []int{0, 1, 23, 24, 300, lendFrom - 1, lendFrom, 70000, MaxNodeInline} {
		data := bytes.Repeat([]byte{7}, size)
		var g Gathered
		for range 2 { // it may be used again
			req := &NodeRequestPayload{
				Ops: []NodeOp{&NodeWrite{Handle: 1 << 41, Offset: 5, Data: data, Flags: 1}, &NodeClose{Handle: 1 << 41}},
				As:  &NodeIdentity{UID: 1, GID: 2, Groups: []uint32{}},
			}
			if err := g.Request(9, req); err != nil {
				t.Fatal(err)
			}
			var got NodeRequestPayload
			if err := DecodePayload(opened(t, &g, 9, NodeRequest), &got); err != nil || !reflect.DeepEqual(&got, req) {
				t.Fatalf("%d bytes: %v", size, err)
			}
			want := NodeResponsePayload{Results: []NodeResult{&NodeBytesResult{Data: data}}}
			if err := g.Response(9, &want); err != nil {
				t.Fatal(err)
			}
			answer, err := DecodeNodeResponse(opened(t, &g, 9, NodeResponse), []NodeOp{&NodeRead{}})
			if err != nil || !reflect.DeepEqual(answer, want) {
				t.Fatalf("%d bytes: %v", size, err)
			}
		}
	}
}

func opened(t *testing.T, g *Gathered, id uint32, typ Type) []byte {
	t.Helper()
	f, err := frame.Parse(written(g))
	if err != nil || f.ID != id || f.Flags != typ.Flags() {
		t.Fatal(f.ID, f.Flags, err)
	}
	e, err := ParseEnvelope(f.Body)
	if err != nil || e.T != typ.String() || e.V != Generation {
		t.Fatal(e.T, e.V, err)
	}
	return e.P
}

func written(g *Gathered) []byte {
	return bytes.Join(g.Parts(), nil)
}

func TestReadData(t *testing.T) {
	for _, size := range []int{0, 1, 23, 24, 255, 256, 65535, 65536, MaxNodeInline} {
		data := bytes.Repeat([]byte{7}, size)
		var g Gathered
		if err := g.Response(3, &NodeResponsePayload{Results: []NodeResult{&NodeBytesResult{Data: data}}}); err != nil {
			t.Fatal(err)
		}
		whole := bytes.Clone(written(&g))
		if head, tail := g.AroundRead(3, size); !bytes.Equal(whole, bytes.Join([][]byte{head, data, tail}, nil)) {
			t.Errorf("%d bytes: AroundRead differs from Response", size)
		}
		body := whole[frame.Overhead:]
		start, n, ok := ReadData(body[:min(len(body), 64)], len(body))
		if !ok || n != size || !bytes.Equal(body[start:start+n], data) || !IsReadTail(body[start+n:]) {
			t.Fatalf("%d bytes: found %d at %d, %v", size, n, start, ok)
		}
		if _, _, ok := ReadData(body[:min(len(body), 64)], len(body)+1); ok {
			t.Error("a length that does not fit")
		}
	}
	var g Gathered
	for _, p := range []NodeResponsePayload{
		{Errno: 5}, {Results: []NodeResult{&NodeNoResult{}}}, {Results: []NodeResult{&NodeBytesResult{}, &NodeBytesResult{}}},
	} {
		if err := g.Response(3, &p); err != nil {
			t.Fatal(err)
		}
		body := written(&g)[frame.Overhead:]
		for n := range body {
			if _, _, ok := ReadData(body[:n], len(body)); ok {
				t.Errorf("%+v is no read", p)
			}
		}
	}
}
