package dlock_test

import (
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/dlock-go/dlock"
)

func TestConfigReadsYAML(t *testing.T) {
	const file = `
driver: memory
dsn: memory://orders
prefix: "myapp:"
owner: web-1
default_ttl: 30s
retry_interval: 100ms
max_retries: 3
wait_timeout: 2s
renew_interval: 5s
reentrant: true
local_handovers: -1
`
	want := dlock.Config{
		Driver: "memory", DSN: "memory://orders", Prefix: "myapp:", Owner: "web-1",
		DefaultTTL: 30 * time.Second, RetryInterval: 100 * time.Millisecond, MaxRetries: 3, WaitTimeout: 2 * time.Second,
		RenewInterval: 5 * time.Second, Reentrant: true, LocalHandovers: -1,
	}
	var got dlock.Config
	dec := yaml.NewDecoder(strings.NewReader(file))
	dec.KnownFields(true)
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	locker, err := dlock.OpenConfig(&got)
	if err != nil {
		t.Fatal(err)
	}
	if err := locker.Close(); err != nil {
		t.Error(err)
	}

	text, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var again dlock.Config
	if err := yaml.Unmarshal(text, &again); err != nil || again != want {
		t.Errorf("written and read again: %v, %v; want %v", again, err, want)
	}
}

func TestConfigInYAMLShowsNoSecret(t *testing.T) {
	text, err := yaml.Marshal(dlock.Config{Driver: "redis", DSN: "redis://app:s3cret@host:6379/0"})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "s3cret") {
		t.Errorf("the password is in the YAML:\n%s", text)
	}
}
