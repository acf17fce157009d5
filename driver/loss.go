package driver

// LossWatcher is a Backend that may hear of a lost hold before the next renewal would find it:
// a store announces that a lease ended or that a key is gone. Without it the engine finds a loss
// by the next renewal.
type LossWatcher interface {
	Backend

	// WatchLosses registers suspect. The engine calls WatchLosses once, before any other method.
	//
	//   - The backend calls suspect(key) when a hold of key, as it stands in [Claim.Key], may be
	//     lost. The engine then renews the hold at once, and that renewal decides. So suspect may
	//     be called too often, but never instead of answering ErrNotOwner. Renewals that it causes
	//     are at least 5 ms apart for each hold, and one that is under way is followed by another.
	//   - A hold that the application asked not to renew is left alone: a renewal would lengthen
	//     it. It ends at its deadline.
	//   - suspect returns at once and may be called from any goroutine, also for keys that nobody
	//     holds, and after Close.
	WatchLosses(suspect func(key string))
}
