//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheManualRuns runs what docs/command.md shows: its sh blocks, the lines of its crontabs as cron would, and the dlock side of its tables.
func TestTheManualRuns(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	text, err := os.ReadFile("../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	find := func(pattern string) (found []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			found = append(found, m[1])
		}
		return found
	}
	blocks := find("(?s)```sh\n(.*?)```")
	crontab := find(`(?m)^[*/0-9]+ [*/0-9]+ \* \* \*  +(.*)$`)
	var table []string
	for _, line := range find("(?m)^\\| `.*\\| `(dlock run .*)` \\|$") {
		if !strings.Contains(line, "infinity") { // it is meant not to end
			table = append(table, strings.ReplaceAll(line, `\|`, "|"))
		}
	}
	if len(blocks) < 8 || len(crontab) != 3 || len(table) < 10 {
		t.Fatalf("found %d blocks, %d lines for cron and %d in tables: the pattern does not fit the text any more", len(blocks), len(crontab), len(table))
	}
	dir := manualDir(t)
	for _, script := range append(blocks, table...) {
		cmd := with(command(t), "PATH="+dir+":"+os.Getenv("PATH"), "XDG_STATE_HOME="+dir+"/state", "DLOCK_DRIVER=")
		cmd.Path, cmd.Args, cmd.Dir = "/bin/bash", []string{"bash", "-eu", "-c", script}, dir
		if got := finish(t, cmd); got.code != 0 {
			t.Errorf("%s\nended with %+v", script, got)
		}
	}
	for _, line := range crontab {
		cmd := command(t)
		cmd.Path, cmd.Args, cmd.Dir = "/bin/sh", []string{"sh", "-c", line}, dir
		cmd.Env = []string{asCommand + "=1", "SHELL=/bin/sh", "PATH=" + dir + ":/usr/bin:/bin", "HOME=" + dir, "DLOCK_CONFIG=" + configFile(t, "driver: file\n")}
		if got := finish(t, cmd); got != (result{}) {
			t.Errorf("%s\nended with %+v, want nothing that cron would mail", line, got)
		}
	}
}

// manualDir is a directory with the command and the scripts that the manual speaks of.
func manualDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(os.Args[0], filepath.Join(dir, "dlock")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.sh", "deploy.sh", "backup.sh", "invoices.sh"} {
		script := "#!/bin/sh\nexec test -n \"$DLOCK_KEY\"\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil { //nolint:gosec // a script is to be run
			t.Fatal(err)
		}
	}
	return dir
}
