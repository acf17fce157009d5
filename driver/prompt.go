package driver

// Prompt is a Backend that can be trusted to let go. Every backend is to return soon after its context ends, but one that blocks in a read all the same must
// not keep a caller; so, without Prompt, every call runs on a goroutine of its own, which the engine can leave. That costs two switches
// between goroutines per call, a quarter of what a lock on a nearby server takes.
type Prompt interface {
	Backend

	// Prompt reports whether Acquire, Wait, Release and Ping return within a few milliseconds of the end of their context, be it cancelled or late,
	// whatever the store and the network do, and likewise when the Backend is closed. The engine then makes these calls on the goroutine of its caller.
	Prompt() bool
}
