package frame

// Correlation id ranges that a relay gives to its clients.
const (
	// MaxClients is how many clients one relay serves at a time.
	MaxClients = 128
	// RangeStep is the distance between two clients' ranges. Id 0, every
	// multiple of it and the tail of the id space belong to nobody.
	RangeStep uint32 = 0xFFFFFFFF / MaxClients
)

// Range returns the ids of a slot: start inclusive, end exclusive.
func Range(slot int) (start, end uint32) {
	return uint32(slot)*RangeStep + 1, uint32(slot+1) * RangeStep
}

// Slot returns the owner of an id; ok is false for ids that belong to nobody.
func Slot(id uint32) (slot int, ok bool) {
	slot = int(id / RangeStep)
	return slot, id%RangeStep != 0 && slot < MaxClients
}
