package agent

// TCPConnectPayload opens a connection from inside the guest.
type TCPConnectPayload struct {
	Host string     `cbor:"host"`
	Port uint16     `cbor:"port"`
	Bulk *BulkOffer `cbor:"bulk,omitempty"`
}

// TCPFailedPayload ends a connection with an error.
type TCPFailedPayload struct {
	Error string `cbor:"error"`
}
