package redis

import (
	"crypto/sha1" //nolint:gosec // it is how Redis names scripts
	"embed"
	"encoding/hex"
	"strings"
	"sync"
)

//go:embed lua/*.lua
var sources embed.FS

// script is a Lua script and the name that the server knows it by.
type script struct{ source, sha []byte }

var (
	acquireScript  = loaded("acquire")
	reassertScript = loaded("reassert")
	releaseScript  = loaded("release")
	renewScript    = loaded("renew")
	breakScript    = loaded("break")
)

// loaded returns a function that has the script, read on first use: a program that only might use Redis starts no later for it.
func loaded(name string) func() *script { return sync.OnceValue(func() *script { return load(name) }) }

// load reads a script, puts in what it includes, and takes out comments and indentation, so that what is sent is short.
func load(name string) *script {
	source := read(name + ".lua")
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return &script{[]byte(source), hex.AppendEncode(nil, sum[:])}
}

func read(file string) string {
	text, err := sources.ReadFile("lua/" + file)
	if err != nil {
		panic(err) // it is part of the program
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if included, ok := strings.CutPrefix(line, "--include "); ok {
			b.WriteString(read(included))
			continue
		}
		if line == "" || strings.HasPrefix(line, "--") {
			continue
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
