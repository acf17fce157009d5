// Package etcd keeps locks in etcd. Import it for its side effect and open it as "etcd":
//
//	dlock.Open("etcd", "etcd://h1:2379,h2:2379,h3:2379", cfg)
//
// or give it a client that the application already has:
//
//	dlock.New(etcddriver.New(client), cfg)
//
// Everything goes through etcd's consensus: a lock survives the loss of any minority of the members, and a fence never repeats. It needs etcd
// 3.4 or newer.
package etcd
