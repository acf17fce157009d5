//go:build !dlock_no_redis

package main

import _ "github.com/dlock-go/dlock/drivers/redis" // registers the driver
