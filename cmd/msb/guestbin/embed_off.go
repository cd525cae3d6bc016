//go:build !embedguest

package guestbin

var embedded []byte
