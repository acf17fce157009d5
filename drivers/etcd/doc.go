// Package etcd keeps locks in etcd. Import it for its side effect and open it as "etcd":
//
//	dlock.Open("etcd", "etcd://h1:2379,h2:2379,h3:2379", cfg)
//
// or give it a client that the application already has:
//
//	dlock.New(etcddriver.New(client), cfg)
//
// Everything goes through etcd's consensus: a lock survives the loss of any minority of the members, and no fence is ever used twice. It is tested with
// etcd 3.7; it uses nothing that 3.4 does not have.
//
// # How it works
//
// All who want a lock have a key below it, and the oldest one's owner holds it: the protocol of etcdctl lock and of clientv3/concurrency. So dlock and these
// exclude each other, both ways, and people can migrate one service at a time. Every lock of one TTL that a process has is on one lease. That makes a lock one
// transaction and an unlock one delete, instead of the four writes of a session per lock, and any number of held locks is kept by one keepalive. Many goroutines
// that lock and unlock at the same time share requests: what comes while four are on their way goes out as one transaction.
//
//   - A lock that is waited for goes to those who wait in the order in which they came. The next one watches the key ahead of it, and has the lock a
//     round trip after it was freed.
//   - The fence is the create revision of the holder's key, times 256.
//   - The server counts in whole seconds, and has a shortest TTL: one and a half times its election timeout, which by default makes two seconds. A TTL is
//     rounded up to that, and a crashed holder's lock is freed that much later. (Locks of a living process end in time: it deletes them itself.)
//   - A lock counts from the last sign of life of its lease, which may be a while ago: at first a lock that is not renewed (dlock.WithoutRenewal) lasts for
//     anything from half of its TTL to all of it.
//   - Every renewal compares the server's list of the lease's keys with the locks that are held. A
//     holder whose key was deleted learns of it then; one whose lease the server has ended, at once.
//   - A member that hangs is not waited for: where there are several, a request that is not answered
//     within 800 ms, or a sixth of the TTL, goes to another one.
//
// # Keys
//
// The keys of a lock are namespace + key + "/" + a name that a process uses again and again. The key is the application's Config.Prefix and its own key, with
// '/' written %2F and '%' written %25, so that the locks a and a/b have nothing to do with each other. The namespace is written as it is. A value is the
// text that says who the owner is, a blank, and 32 digits that are derived from the owner's secret token and do not tell it.
//
// To share the lock that somebody takes with etcdctl lock svc/orders, set the namespace to "svc/" and lock the key "orders". As with etcdctl, namespaces must not be
// nested: with the namespace "svc/orders/" every lock would be below the lock orders of the namespace "svc/".
//
// A lease that is renewed has a key of its own, which is watched: namespace + key + "%lease-" and a
// number, where key is that of a lock that was held then. It is no lock's, and is not listed.
//
// # TTL
//
// A leader that stalls for longer than the TTL (a stopped machine, a disk that hangs) may end leases
// when it goes on, although the new leader keeps them alive. Holders are told at once, but not before
// it happens: for about a round trip two may hold the lock, and only the fence keeps them apart. So
// choose a TTL well above the longest stall and the longest election that are expected; the default
// of 10 seconds is ten times etcd's election timeout.
//
// # DSN
//
//	etcd://user:password@h1:2379,h2:2379,h3:2379/?parameters    etcds:// for TLS
//
// Name all members; the port is 2379 by default. User and password go together.
//
//	namespace                  what all keys begin with             ""
//	dial_timeout               for a connection, and for logging in 5s
//	keepalive_time             a silent connection is tested after  10s
//	keepalive_timeout          and given up after                   3s
//	ca, cert, key              files, for TLS                       the system's authorities, no certificate
//	insecure                   do not check the server's            false
//
// A client that the application already has should have DialKeepAliveTime set too: without it a connection that has gone dead is noticed late. And it may be
// used up by the application: locks share its connection.
//
// # Permissions
//
// A user who may do no more than locking needs read and write permission for the keys that begin with the namespace and the prefix:
//
//	etcdctl role grant-permission app --prefix=true readwrite svc/
//
// With passwords, every stream that is opened costs the server a password check, so the driver keeps
// its two open: one for keepalives, one for watches while somebody waits, and some seconds more, or
// holds a lock that was renewed. Listing alarms (dlock doctor) is for administrators.
//
// # Limits
//
// The server needs its history compacted (auto-compaction-retention), as it does for any use. A lease can be kept alive by one process only: a lock belongs to the
// process that took it. Lease checkpoints (an experiment of the server, off by default) shorten leases over an election, and must stay off. Several
// hundred processes may wait for one lock; each who comes makes the server look at all who wait.
//
// # Coming from clientv3/concurrency
//
// concurrency.NewMutex(session, "svc/orders") is the lock "orders" in the namespace "svc/". Instead of Session.Done, which tells of a loss when the server has long
// freed the key, look at the lease's Done or use the context that dlock.Do gives; instead of Mutex.Header().Revision as a fencing token use the
// lease's Fence. A Locker may be used by any number of goroutines, also for one key, where two Mutexes of one session would both hold it.
package etcd
