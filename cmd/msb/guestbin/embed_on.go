//go:build embedguest

package guestbin

import _ "embed"

//go:embed msb-guest
var embedded []byte
