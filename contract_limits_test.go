package dlock

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// Authors of drivers read the engine's numbers in package driver, and have no other place to.
func TestDriverContractTellsTheEnginesLimits(t *testing.T) {
	text, err := os.ReadFile("driver/driver.go")
	if err != nil {
		t.Fatal(err)
	}
	contract := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", "")), " ")
	ttl := 10 * time.Second
	for _, want := range []string{
		fmt.Sprintf("A key has 1 to %s bytes of any value", thousands(maxPrefixLen+MaxKeyLen)),
		fmt.Sprintf("a prefix of at most %d and a name of at most %s", maxPrefixLen, thousands(MaxKeyLen)),
		fmt.Sprintf("A token has %d bytes", len(newToken())),
		fmt.Sprintf("An owner has 0 to %d bytes", maxOwnerLen),
		fmt.Sprintf("A TTL is from %v to %gh", MinTTL, MaxTTL.Hours()),
		fmt.Sprintf("Acquire has the TTL, but at most %v; Release has %v", acquireLimit, releaseLimit),
		fmt.Sprintf(`"Soon after ctx ends" means within %v`, grace),
		fmt.Sprintf("When %d calls have been left behind", maxAbandoned),
		fmt.Sprintf("less a hundredth of the TTL and at least %v", margin(0)),
		fmt.Sprintf("The engine waits %v for it", closeBackendLimit),
	} {
		if !strings.Contains(contract, want) {
			t.Errorf("package driver does not say: %s", want)
		}
	}
	if margin(ttl) != ttl/100 {
		t.Errorf("the margin of %v is %v, want what package driver says", ttl, margin(ttl))
	}
}

// thousands is n, of four digits, as people write it.
func thousands(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
