//go:build unix

package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// countArg makes the test binary be a program that counts its signals.
const countArg = "count-signals"

// countSignals says which signals come, and after SIGUSR2 how often each did.
func countSignals() {
	c := make(chan os.Signal, 64)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	count := map[int]int{}
	fmt.Printf("counting %d\n", os.Getpid())
	for s := range c {
		n := number(s)
		count[n]++
		fmt.Printf("got %d\n", n)
		if s == syscall.SIGUSR2 {
			fmt.Printf("total %v\n", count)
			os.Exit(0)
		}
	}
}
