package driver

// CallMode says how the engine may call a Backend.
type CallMode uint8

const (
	// Detached lets the engine make every call on a goroutine that it can leave behind. Every
	// backend is to return soon after its ctx ends, but one that blocks in a read all the same
	// does not keep the caller. This is what a Backend without [CallModer] gets. It costs two
	// switches between goroutines per call.
	Detached CallMode = iota

	// Interruptible is for a backend whose calls return within milliseconds of the end of their
	// ctx, be it canceled or late, and likewise when the backend is closed. That must hold whatever
	// the store, the network and the application's own hooks do. The engine then calls Acquire,
	// Wait, Release and Ping on the goroutine of its caller. Renew and RenewBatch stay detached.
	Interruptible

	// Inline is for a store in this process: no call but Wait waits for anything but a mutex that
	// is held for a moment. The engine then makes every call but Wait where it stands. A type that
	// embeds such a Backend and slows it down must not say Inline.
	Inline
)

// CallModer is a Backend that says how it may be called. Without it the mode is [Detached].
type CallModer interface {
	Backend

	// CallMode is asked once, before any other call but WatchLosses. It must not claim more than
	// the backend controls: with hooks of the application in the way of a call, the mode is
	// Detached.
	CallMode() CallMode
}
