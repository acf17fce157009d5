// Package tether keeps the processes that tests start from outliving them.
package tether

import "os/exec"

// Tie has the kernel kill cmd, which is yet to be started, when the test process ends, where the kernel can do that.
func Tie(cmd *exec.Cmd) { tie(cmd) }
