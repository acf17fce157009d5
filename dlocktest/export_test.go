package dlocktest

import "strings"

// SkipAllBut returns what Harness.Skip needs to run nothing but the cases whose ids begin with one
// of prefixes.
func SkipAllBut(prefixes ...string) map[string]string {
	skip := map[string]string{}
next:
	for _, c := range cases {
		for _, p := range prefixes {
			if strings.HasPrefix(c.id, p) {
				continue next
			}
		}
		skip[c.id] = "not asked for"
	}
	return skip
}
