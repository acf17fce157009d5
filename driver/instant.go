package driver

// Instant is a Backend whose store is in this process. Without it every call runs on a goroutine of its own, so that the engine can leave a call
// that does not return when its context ends; that costs about as much as two channel operations and a new goroutine.
type Instant interface {
	Backend

	// Instant reports whether Acquire, Renew, RenewBatch, Release and Ping never wait for anything but a mutex that is held
	// for a moment. The engine then makes these calls where it stands. Wait may wait, and is not included.
	//
	// A type that embeds such a Backend in order to slow it down must answer false.
	Instant() bool
}
