package model

// Rules are the protocol's rules, one switch each. All of them are on in the protocol; a test turns one off to see that it is needed. What a switch
// does when it is off is said with it.
type Rules struct {
	// The clock of a hold.
	StartAtSend        bool // off: a hold counts from the arrival of the reply
	Margin             bool // off: D is S + T
	StartNotLastSent   bool // off: a hand-over counts from the last request that was sent
	StartNotLastAcked  bool // off: a hand-over counts from the last request that was answered, whatever F it showed
	DropStale          bool // off: a hand-over that is older than what the waiter was told is taken
	FreshReplyWins     bool // off: a "holder" reply with an old fence is dropped even if it was asked for later
	CancelPastD        bool // off: a hand-over past D is dropped, and its token is left alone
	RefreshOnSameToken bool // off: acquire by the holder's token leaves the TTL as it is
	ReassertRefreshes  bool // off: so does re-assertion
	NeverShorten       bool // off: acquire, re-assert and renew set the TTL even if more is left
	DeadlineFromAsked  bool // off: a renewal counts what the server says is left, where that is more than was asked for

	// Tokens.
	NewTokenAfterRelease bool // off: the next attempt uses the token that is being cleaned up
	ReassertNeverAdds    bool // off: re-assertion enqueues a token that is gone
	RenewNeverCreates    bool // off: renewal takes a free lock
	CancelUnknown        bool // off: a hand-over to a token nobody wants is ignored
	CancelSparesHeld     bool // off: a granted token counts as unknown
	CancelSparesRetry    bool // off: a token between two attempts counts as unknown
	CleanupRepeats       bool // off: clean-up ends with its first answer
	CleanupCountsAll     bool // off: clean-up ends when the token was removed, although a second enqueue of it is unanswered

	// The queue.
	DirectHandover    bool // off: release frees the lock and tells the first waiter to ask
	MarkAfterHandover bool // off: a lock that is handed over is marked '-' although others wait
	QueueNotOvertaken bool // off: acquire takes a free lock although others wait
	EnqueueOnce       bool // off: a token that is queued is queued again
	TakerLeavesQueue  bool // off: a waiter that takes the lock by its own request stays in the queue
	PromoteWhenFree   bool // off: re-assertion does not pass on a free lock
	LivenessSkip      bool // off: silent waiters are given the lock
	ReceiverSkip      bool // off: so are those that PUBLISH did not reach
	KeysExpire        bool // off: queue and last-seen have no expiry
	PassOnUntilAlive  bool // off: a release that has passed over as many as it may leaves a free lock with a queue

	// Waiting.
	SubscribeFirst      bool // off: the enqueue does not wait for the subscription
	ReassertPeriodic    bool // off: only the holder's PTTL makes a waiter ask again
	AskWhenUnsure       bool // off: a hand-over without a reply to count from waits for the next period
	ReassertOnReconnect bool // off: a waiter does not ask when the subscription is back
	ReconnectOnMissing  bool // off: a grant found without its message is nothing special
	TakenNeedsNoMessage bool // off: a waiter that took a free lock by asking misses a message, too
	BlameTheRightOne    bool // off: a subscription is replaced for a message that may be older than itself
	PTTLTimer           bool // off: only the period makes a waiter ask again
	HeadPolls           bool // off: nobody polls for a foreign holder
	AskWhenFree         bool // off: a waiter that is told that nobody has the lock asks again when it would have anyway

	// Fences.
	FenceFromTime      bool // off: stored + 1, without the clock
	FenceFromStored    bool // off: the clock alone
	FenceRunEnd        bool // off: F stores the first fence of the run
	KeepFenceWhileHeld bool // off: renewals leave F's expiry as it is
	KeepFenceAhead     bool // off: F's expiry counts from the clock, although F is ahead of it
	RenewChecksFence   bool // off: renewals check the token alone
}

// AllRules is the protocol.
func AllRules() Rules {
	return Rules{
		StartAtSend: true, Margin: true, StartNotLastSent: true, StartNotLastAcked: true, DropStale: true, FreshReplyWins: true,
		CancelPastD: true, RefreshOnSameToken: true, ReassertRefreshes: true, NeverShorten: true, DeadlineFromAsked: true,
		NewTokenAfterRelease: true, ReassertNeverAdds: true, RenewNeverCreates: true, CancelUnknown: true, CancelSparesHeld: true,
		CancelSparesRetry: true, CleanupRepeats: true, CleanupCountsAll: true,
		DirectHandover: true, MarkAfterHandover: true, QueueNotOvertaken: true, EnqueueOnce: true, TakerLeavesQueue: true,
		PromoteWhenFree: true, LivenessSkip: true, ReceiverSkip: true, KeysExpire: true, PassOnUntilAlive: true,
		SubscribeFirst: true, ReassertPeriodic: true, AskWhenUnsure: true, ReassertOnReconnect: true, ReconnectOnMissing: true,
		TakenNeedsNoMessage: true, BlameTheRightOne: true, PTTLTimer: true, HeadPolls: true, AskWhenFree: true,
		FenceFromTime: true, FenceFromStored: true, FenceRunEnd: true, KeepFenceWhileHeld: true, KeepFenceAhead: true, RenewChecksFence: true,
	}
}
