//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/internal/redistest"
)

// configFile writes a file for --config.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dlock.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagsWinOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	file := configFile(t, "driver: audit\nprefix: 'file:'\ndefault_ttl: 20s\n")
	for _, c := range []struct{ args, env, want string }{
		{"", "", "acquire file:demo 20s"},
		{"", "DLOCK_PREFIX=env: DLOCK_DEFAULT_TTL=21s", "acquire env:demo 21s"},
		{"--prefix flag:", "DLOCK_PREFIX=env:", "acquire flag:demo 20s"},
		{"--prefix=", "DLOCK_PREFIX=env:", "acquire demo 20s"},
		{"--ttl 22s", "DLOCK_DEFAULT_TTL=21s", "acquire file:demo 22s"},
		{"--ttl 60s", "DLOCK_DEFAULT_TTL=1ms DLOCK_RENEW_INTERVAL=15s", "acquire file:demo 1m0s"},
	} {
		args := append(append([]string{"run", "demo"}, strings.Fields(c.args)...), "--", "true")
		got := finish(t, with(command(t, args...), append(strings.Fields(c.env), "DLOCK_DRIVER=", "DLOCK_CONFIG="+file)...))
		if first, _, _ := strings.Cut(got.out, "\n"); got.code != 0 || first != c.want {
			t.Errorf("%s %s: %+v, want %q", c.args, c.env, got, c.want)
		}
	}
	got := finish(t, with(command(t, "run", "demo", "--config", file, "--", "true"), "DLOCK_DRIVER=", "DLOCK_CONFIG=/nowhere"))
	if got.code != 0 || !strings.HasPrefix(got.out, "acquire file:demo 20s") {
		t.Errorf("--config against DLOCK_CONFIG: %+v", got)
	}
	if got := finish(t, with(command(t, "run", "demo", "--config=", "--", "true"), "DLOCK_DRIVER=audit", "DLOCK_CONFIG=/nowhere")); got.code != 0 {
		t.Errorf("an empty --config against DLOCK_CONFIG: %+v", got)
	}
}

func TestWithoutSettingsLocksAreTheUsersOwnFiles(t *testing.T) {
	home := "XDG_STATE_HOME=" + t.TempDir()
	script := `"$0" inspect demo >/dev/null && "$0" ls`
	got := finish(t, with(command(t, "run", "demo", "--", "sh", "-c", script, os.Args[0]), home, "DLOCK_DRIVER="))
	if got.code != 0 || !strings.Contains(got.out, "\ndemo ") {
		t.Errorf("%+v, want the lock seen by another process", got)
	}
}

func TestABadConfigurationIs64AndNamesTheSetting(t *testing.T) {
	for text, want := range map[string]string{
		"driver: memory\ncolour: red\nsize: 3\n": `unknown key "colour", "size"; accepted: driver, dsn, prefix`,
		"max_retries: often":                     "max_retries must be a whole number",
		"default_ttl: 5":                         "default_ttl must be a duration such as 30s",
		"reentrant: perhaps":                     "reentrant must be true or false",
		"driver: [a]":                            "driver must be a single value",
		"driver: memory\ndriver: file":           "driver is given twice",
		"- driver":                               "want lines such as driver: redis",
		"driver: 'memory\n":                      "not YAML",
		"default_ttl: 1ms":                       "DefaultTTL is 1ms",
	} {
		got := finish(t, command(t, "run", "demo", "--config", configFile(t, text), "--", "true"))
		if got.code != 64 || !strings.Contains(got.err, want) {
			t.Errorf("%q: %+v, want code 64 and %q", text, got, want)
		}
	}
	got := finish(t, command(t, "ls", "--config", "/nowhere/dlock.yaml"))
	if want := "dlock: config file /nowhere/dlock.yaml: no such file"; got.code != 64 || !strings.HasPrefix(got.err, want) {
		t.Errorf("no file: %+v, want %q", got, want)
	}
	got = finish(t, with(command(t, "ls"), "DLOCK_RENEW_INTERVAL=soon"))
	if want := "dlock: DLOCK_RENEW_INTERVAL must be a duration"; got.code != 64 || !strings.HasPrefix(got.err, want) {
		t.Errorf("a bad variable: %+v, want %q", got, want)
	}
	if got := finish(t, command(t, "ls", "--config", configFile(t, "# nothing\ndsn:\n"))); got.code != 0 {
		t.Errorf("a file with nothing in it: %+v", got)
	}
}

// canary is the password in the test below.
const canary = "s3cretcanary"

func TestSecretsAreNeverShown(t *testing.T) {
	server := redistest.Start(t, "--requirepass", canary)
	good := "redis://default:" + canary + "@" + server.Addr
	refute := func(what string, got result) {
		t.Helper()
		if strings.Contains(got.out+got.err, canary) {
			t.Errorf("%s: %+v", what, got)
		}
	}
	for _, args := range []string{
		"run demo -v -- true", "ls", "inspect demo", "break demo --yes", "doctor", "doctor --json", "top --json -c 1", "--help", "__complete inspect d",
	} {
		refute(args, finish(t, with(command(t, strings.Fields(args)...), "DLOCK_DRIVER=redis", "DLOCK_DSN="+good)))
	}
	refute("a DSN for the driver", finish(t, with(command(t, "ls"), "DLOCK_DRIVER="+good)))
	refute("a DSN for a name in the file", finish(t, command(t, "ls", "--config", configFile(t, "? '"+good+"'\n: x\n"))))
	for _, dsn := range []string{
		"redis://default:" + canary + "x@" + server.Addr, "redis://default:" + canary + "@127.0.0.1:1", "redis://default:" + canary + "@host:port",
		"redis://default:" + canary + "@127.0.0.1:1?colour=" + canary, "*" + canary, canary,
	} {
		for _, args := range []string{"run demo -v -- true", "doctor"} {
			refute(args+" with "+dsn, finish(t, with(command(t, strings.Fields(args)...), "DLOCK_DRIVER=redis", "DLOCK_DSN="+dsn)))
			flags := []string{"--driver", "redis", "--config", configFile(t, "dsn: "+dsn+"\nowner: 3\n")}
			refute(args+" with a file with "+dsn, finish(t, command(t, append(flags, strings.Fields(args)...)...)))
		}
	}
	refute("a file that is not YAML", finish(t, command(t, "ls", "--config", configFile(t, "driver: redis\n\tdsn: "+good+"\n"))))
}

func TestAFileWithAPasswordThatOthersMayUseDrawsOneWarning(t *testing.T) {
	const secret = "driver: memory\ndsn: memory://app:" + canary + "@\n"
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{secret, 0o600, ""},
		{secret, 0o700, ""},
		{secret, 0o604, "mode 0604: every user can read it; chmod 600 "},
		{secret, 0o640, "mode 0640: its group can read it; chmod 600 "},
		{secret, 0o620, "mode 0620: its group can change it; chmod 600 "},
		{secret, 0o666, "mode 0666: every user can read or change it; chmod 600 "},
		{
			"driver: redis\ndsn: redis+sentinel://h/m?sentinel_password=" + canary + "\n", 0o644,
			"mode 0644: every user can read it",
		},
		{"driver: redis\ndsn: redis://app:" + canary + "@a@b\n", 0o644, "mode 0644: every user can read it"},
		{"driver: memory\ndsn: memory://\n", 0o666, ""},
		{"driver: memory\n", 0o666, ""},
	} {
		file := configFile(t, c.text)
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		// It loads the settings twice.
		cmd := command(t, "break", "demo", "--yes", "--config", file)
		got := finish(t, with(cmd, "DLOCK_DRIVER=", "DLOCK_DSN=memory://"))
		warnings := strings.Count(got.err, "dlock: warning: config file "+file+" has a password in it and ")
		if !strings.Contains(got.err, c.want) || warnings > 1 || (warnings == 1) != (c.want != "") ||
			strings.Contains(got.err, canary) {
			t.Errorf("%o: %q, want one warning with %q", c.mode, got.err, c.want)
		}
	}
}
