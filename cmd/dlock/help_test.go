//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompletionScriptsCompleteKeysAndDrivers(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	env := append(fileStore(t), "DLOCK_PREFIX=app:")
	hold(t, "orders", env)
	dir := t.TempDir()
	if err := os.Symlink(os.Args[0], filepath.Join(dir, "dlock")); err != nil {
		t.Fatal(err)
	}
	// What bash does when Tab is pressed, without the package bash-completion.
	const script = `
_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }
__ltrim_colon_completions() { :; }
compopt() { :; }
source <(dlock completion bash) || exit 1
for line in "dlock inspect or" "dlock run or" "dlock ls --driver fi" "dlock doc"; do
	COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9 COMP_WORDS=($line) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
	__start_dlock && echo "$line: ${COMPREPLY[*]}"
done`
	cmd := with(command(t), append(env, "PATH="+dir+":"+os.Getenv("PATH"))...)
	cmd.Path, cmd.Args = bash, []string{"bash", "-c", script}
	got := finish(t, cmd)
	want := "dlock inspect or: orders\ndlock run or: orders\ndlock ls --driver fi: file\ndlock doc: doctor\n"
	if strings.ReplaceAll(got.out, " \n", "\n") != want || got.code != 0 {
		t.Errorf("%+v, want %q", got, want)
	}
	for _, shell := range []string{"zsh", "fish"} {
		if got := finish(t, command(t, "completion", shell)); got.code != 0 || !strings.Contains(got.out, "__complete") {
			t.Errorf("completion %s: %+v", shell, got)
		}
	}
}

func TestManualPagesAreWrittenForEveryCommand(t *testing.T) {
	dir := t.TempDir()
	if got := finish(t, command(t, "man", dir)); got != (result{}) {
		t.Fatalf("man: %+v", got)
	}
	for _, c := range newRoot().Commands() {
		if c.Hidden {
			continue
		}
		page, err := os.ReadFile(filepath.Join(dir, "dlock-"+c.Name()+".1"))
		if err != nil || !strings.Contains(string(page), c.Short) {
			t.Errorf("%s: %v", c.Name(), err)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "dlock-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".TH DLOCK-RUN 1", ".SH NAME\ndlock\\-run \\- Run a command", `\fB\-w\fR, \fB\-\-wait\fR \fIduration\fR`, ".SH SEE ALSO\n\\fBdlock\\fR(1)"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("dlock-run.1 has no %q:\n%s", want, page)
		}
	}
	man, err := exec.LookPath("man")
	if err != nil {
		t.Skip("there is no man to read them with")
	}
	cmd := with(command(t), "MANWIDTH=80", "LC_ALL=C")
	cmd.Path, cmd.Args = man, []string{"man", "--warnings", filepath.Join(dir, "dlock-run.1")}
	if got := finish(t, cmd); got.code != 0 || got.err != "" || !strings.Contains(got.out, "75  another owner has the lock") {
		t.Errorf("man cannot read its page: %+v", got)
	}
}

func TestHelpNamesEveryExitCode(t *testing.T) {
	got := finish(t, command(t, "run", "--help"))
	for _, code := range []string{"64", "69", "75", "76", "126", "127", "128"} {
		if got.code != 0 || !strings.Contains(got.out, code) {
			t.Errorf("help does not name %s", code)
		}
	}
}

func TestNothingInTheHelpIsAnInstructionToTroff(t *testing.T) {
	if got, want := roff("a\\b\n.c\n'd-e"), "a\\eb\n\\&.c\n\\&'d\\-e"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
