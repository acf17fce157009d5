// Package etcdtest starts etcd for tests.
package etcdtest

import (
	_ "go.etcd.io/etcd/client/v3"
	_ "go.etcd.io/etcd/server/v3/embed"
)
