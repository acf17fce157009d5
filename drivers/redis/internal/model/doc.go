// Package model is the protocol of drivers/redis as a small simulation, and the specification that the Lua scripts follow. Where the scripts differ they
// say the same in fewer words: they keep the holder's fence in L's value as well, and answer a grant with its fence alone (and re-assert "holder" with a list of
// it).
//
// [Run] plays one seed: a server, a few client processes, a network that delays, reorders and loses, and faults drawn from the seed. Time is
// simulated and nothing depends on the machine, so a seed always tells the same story. Oracles look at the world after every event (oracle.go).
// Every rule of the protocol is a switch in [Rules]; the tests show for each of them a seed that goes wrong without it.
//
//	store.go   the keys, requests and replies
//	script.go  the scripts: what the server does
//	acq.go     one acquisition: the waiter, and the engine in small
//	hold.go    the hold that comes of it
//	proc.go    a client process: its subscription, unknown tokens, clean-up
//	world.go   what a seed draws, and the faults
//	sim.go     time, network, PUBLISH
//	oracle.go  what must never happen
//
// # Keys
//
//	L  the lock        d: + token (32 hex) + mark + owner text. Mark '+': somebody waits; '-': nobody does. PX = what is left of the hold.
//	                   A value of another form is foreign: never written to.
//	F  the fence       [w] + decimal. The end of the last run of fences that was granted; w while somebody queues. PXAT = max(F, TIME) + TTL + five minutes.
//	Q  the queue       list of tokens, first in line first. PX = TTL + five minutes.
//	W  last seen       hash token → "seen-ms ttl-ms channel owner": all that a hand-over has to know of a waiter. PX like Q.
//
// Invariants between scripts: the holder's token is not in Q; a token is in Q at most once; Q not empty ⇒ F begins with w, and L, if it is
// ours, is marked '+'; L ours ⇒ F exists and belongs to the holder's grant; every key has an expiry, F's not before L's and Q's; a hold's never becomes earlier.
//
// One run is 16 fences, a constant for all clients (fenceRun). A grant takes first = max(F + 1, TIME in µs) and writes F = first + 15. So the
// holder's fence is always F - 15.
//
// # Replies
//
// Every script answers one array, kind first:
//
//	granted   first, PTTL       this call gave the lock to the token
//	holder    first, PTTL       the token had it already; its TTL is full again
//	held      F, PTTL, foreign  another has it and nothing was written (acquire without queueing)
//	queued    F, PTTL, foreign, position (0: first in line)
//	gone      F, PTTL, foreign  neither holder nor queued
//	renewed | released | marked | not owner; of a release also whether more queue for a free lock
//
// PTTL is the holder's: 0 when L is free, -1 when it has no expiry. F is 0 when there is none (never in "queued").
//
// # Scripts
//
// handover(self) is a function that several scripts share. self is the caller's token or none.
//
//	at most 64 times:
//	  LPOP Q → tok; none: stop
//	  HGET, HDEL W tok; no field, or |TIME - seen| > 0.8 ttl and tok ≠ self: next one
//	  first = max(F + 1, TIME)
//	  tok ≠ self: PUBLISH channel (tok, first, ttl), an error counts as 1; 0 receivers and the server is no cluster: next one
//	  SET L d:tok± PX ttl, SET F [w]first+15 PXAT max(first+15, TIME) + ttl + 5 min, with + and w if Q is not empty (then F keeps a longer PTTL, so that w does not go before Q); stop
//	nobody found: DEL L; Q is empty: take w off F, DEL W; it is not: the answer says so, and whoever asked asks again at once
//
// acquire(L F Q W; token, owner, ttl, channel, queue) reads L and F, and Q and W when F has its w.
//
//	SET L d:token- NX PX ttl
//	  done, and SET F TIME+15 PX ttl + 5 min GET brought neither w nor a number ≥ TIME: granted (the whole fast path)
//	  the number was ≥ TIME: SET F number+16 PXAT number+16 + ttl + 5 min; granted
//	  it had w: DEL L, SET F back. queue: enqueue. handover(token). Then by what L is: ours → granted; free and Q empty → take it as above, granted;
//	    else queued, or held without queue
//	not done, GET L is ours: PEXPIRE L and F unless more is left; holder
//	not done, another's: queue → enqueue, queued; else held
//	enqueue: LPOS Q token, absent: RPUSH. HSET W. PEXPIRE Q, W unless more is left. L ours-form: SETRANGE L 34 '+'. F gets w (absent: w + TIME).
//
// With queue it is Wait's, without it Acquire's, which never queues but does pass on a free lock to the first live waiter.
//
// reassert(L F Q W; token, ttl, channel) never adds and never takes a lock that nobody queued for.
//
//	GET L ours: PEXPIRE L and F unless more is left; holder
//	LPOS Q token absent: gone, nothing written
//	else HSET W, PEXPIRE, mark and w as in enqueue (first write: PEXPIRE, which works under OOM). L free: handover(token); ours now → granted. queued
//
// renew(L F; token, ttl, first) and, in a cluster, renew(L; token, ttl): GET L not ours: not owner. With F: F - 15 ≠ first: not owner. PEXPIRE L, and F
// if it is there, unless more is left; renewed. The deadline comes from the ttl, never from what is left. In a cluster the form with F is sent
// when half of five minutes has passed since it was last, and when the TTL is longer than it was then (Extend).
//
// release(L; token), the first attempt in a cluster: not ours → not owner, ours '+' → marked, ours '-' → DEL, released. After "marked", and after "not owner"
// for a token that was ever sent with queue, cancel follows.
//
// cancel(L F Q W; token) is every release elsewhere, the answer to unknown tokens, and the clean-up:
//
//	GET L ours '-': DEL; released
//	ours '+': handover(none), LPOP first, so that it works under OOM; released
//	not ours: LREM Q, HDEL W, Q empty → w off F; removed → released, else not owner. L free and Q not empty: handover(none)
//
// break(L F Q W; first): L ours-form and F - 15 = first → handover(none), released; else not owner.
//
// # The waiter
//
// A Wait call subscribes (once per backend) and sends acquire with queue when SUBSCRIBE was acknowledged. While it waits:
//
//   - It remembers of every "queued" reply when its request was sent and which F it showed, and the highest F of any "queued" or "gone".
//   - A hand-over f ≤ that highest F is dropped. Otherwise the grant counts from the latest remembered request that showed F < f; if there is none yet,
//     the hand-over is kept until a reply comes, and after 10 ms the waiter re-asserts.
//   - "granted" and "holder" count from their request's sending. They are dropped if their fence is ≤ the highest F and they were sent before
//     that was heard. (Sent later, they win: after a loss of data fences may start lower.)
//   - It re-asserts after min(T/3, 2 s), or PTTL + 1 ms + 2 ms × position if that is sooner, or 100 ms if it is first in line behind a holder that is foreign or
//     has no expiry; and at once when the subscription was replaced. "gone": enqueue again, same token.
//   - "queued" without a holder: it re-asserts at once.
//   - A grant that is past D on arrival: cancel, another token.
//   - "holder" whose message has not come 100 ms later: subscribe anew, close the old subscription when the new one works. Not if the last request that was
//     answered "queued" was sent before the subscription was acknowledged: the message may have gone to the one before. Never for "granted", which has no
//     message.
//
// A message or late reply for a token that the engine is done with is answered with cancel, repeated until it is answered. The engine is done with a token when
// it called Release for it. A token that was granted, or that is between two attempts, is not unknown: see CancelSparesHeld and CancelSparesRetry.
//
// Release confirms the removal of a token only if no acquire or enqueue of it is unanswered, or there was only one: see CleanupCountsAll.
//
// # The scripts in other words
//
// Where it is cheaper the scripts of the driver say the same in another way. L has the fence too,
// between the mark and the owner, so that a renewal and Break need no other key; a renewal that finds another fence than that of the hold is a loss. F is
// renewed with L during one TTL of every minute. Whether a token may be in Q already is told by its being in W. Keys besides L are passed only in a cluster.
//
// # What is not modelled
//
// Several locks, and pipelines; scripts that are refused (OOM, READONLY, TRYAGAIN, NOSCRIPT: to a client a lost request); split brain, where two servers accept
// writes at once; eviction of keys; WAIT for replicas; a suspended host, whose monotonic clock stands still; polling without pub/sub beyond acquire; the
// local queue of the engine except for hand-overs of a hold.
package model
