// Package bench compares dlock with what else there is for locks in Redis and etcd, and with bare commands that no lock can beat. It is a module of its own, so that
// nobody else gets the peers' modules. docs/benchmarks.md says what is measured and how to run it.
package bench
