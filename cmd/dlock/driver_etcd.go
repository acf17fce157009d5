//go:build !dlock_no_etcd

package main

import _ "github.com/dlock-go/dlock/drivers/etcd" // registers the driver
