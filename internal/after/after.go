// Package after runs functions after contexts have ended.
package after

import "context"

// End has f run on a goroutine of its own once ctx has ended, unless stop is called before. stop reports whether it was in time, as that of context.AfterFunc
// does. Contexts that can do this themselves, as the engine's can, do: package context would derive another one from them.
func End(ctx context.Context, f func()) (stop func() bool) {
	if a, ok := ctx.(interface{ AfterFunc(func()) func() bool }); ok {
		return a.AfterFunc(f)
	}
	if ctx.Done() == nil {
		return inTime
	}
	return context.AfterFunc(ctx, f)
}

func inTime() bool { return true }
