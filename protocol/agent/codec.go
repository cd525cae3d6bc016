package agent

import "msb/protocol/record"

// ErrMalformed reports bytes that are not the CBOR that was expected.
var ErrMalformed = record.ErrMalformed

// payloadDecoder is a payload that reads itself, for speed or because its
// shape is not a struct.
type payloadDecoder interface{ decodePayload(p []byte) error }

// EncodedPayload is a payload that its sender encoded.
type EncodedPayload []byte

// EncodePayload encodes one payload struct. nil gives the unit value `f6`; an
// EncodedPayload passes unchanged.
func EncodePayload(payload any) ([]byte, error) {
	switch p := payload.(type) {
	case nil:
		return []byte{0xf6}, nil
	case EncodedPayload:
		return p, nil
	case Data:
		return appendData(nil, p.Data), nil
	case *Data:
		return appendData(nil, p.Data), nil
	case NodeRequestPayload:
		return p.MarshalCBOR()
	case NodeResponsePayload:
		return p.MarshalCBOR()
	}
	return record.Encode(payload)
}

// DecodePayload decodes p into the payload struct that v points to. Unknown
// fields and bytes after the payload are ignored; a missing or null required
// field, a wrong type, text that is not UTF-8 and nesting deeper than 64 are
// errors that wrap ErrMalformed.
func DecodePayload(p []byte, v any) error {
	if d, ok := v.(payloadDecoder); ok {
		return d.decodePayload(p)
	}
	return record.DecodeStruct(p, v)
}
