// Package dlocktest proves that a driver keeps the rules of package driver, and gives tests of
// services a Locker that can be made to fail.
//
// # For those who write a driver
//
// Call [Run] from a test and tell it how to make a store:
//
//	func TestConformance(t *testing.T) {
//		dlocktest.Run(t, dlocktest.Harness{
//			New: func(t *testing.T) dlocktest.Store {
//				srv := startServer(t) // fresh and empty
//				return dlocktest.Store{
//					Open: func(t testing.TB) driver.Backend { return mystore.New(srv.Addr()) },
//				}
//			},
//		})
//	}
//
// Every case is a subtest named by its id. A case that fails prints the rule it found broken;
// docs/conformance.md lists them all. A case is skipped, with the reason, when the backend lacks an
// optional interface or [Store] lacks a function that it needs. So give Store as many of its
// functions as you can: the cases about outages, losses, a store that hangs and a client that
// vanishes need them. The last line that go test -v logs says which optional interfaces were proven
// and what was skipped.
//
// A store in this process runs in virtual time with Around: synctest.Test, in which waiting costs
// nothing. New is called within Around, so that the store belongs to the bubble.
//
// Only what a rule forbids fails. A store may answer in 200 ms, serve one request of 100 ms after
// the other, notice an expiry a second late, know whole seconds only, and have neither a queue nor
// fences: it passes, given a [Harness.MinTTL] that suits it.
//
// # For those who use locks
//
// [NewLocker] is a real Locker in memory. What does the service do when it loses its lock?
//
//	locker := dlocktest.NewLocker(t)
//	go service.Run(t.Context(), locker)
//	locker.Lose("leader")
//
// [Locker.Expire], [Locker.Fail], [Locker.Slow], [Locker.LoseReply] and [Locker.Peer] ask what it
// does when the store is silent, down or slow, when a reply is lost, and when another process has
// the lock. In virtual time none of them has to be waited for, provided that the Locker is made in
// the bubble:
//
//	synctest.Test(t, func(t *testing.T) {
//		locker := dlocktest.NewLocker(t)
//		…
//	})
package dlocktest
