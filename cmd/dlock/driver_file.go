//go:build !dlock_no_file

package main

import _ "github.com/dlock-go/dlock/drivers/file" // registers the driver
