//go:build !dlock_no_memory

package main

import _ "github.com/dlock-go/dlock/drivers/memory" // registers the driver
