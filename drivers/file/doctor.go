//go:build linux || darwin

package file

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/driver"
)

// Ping implements [driver.Pinger]: the directory is there, and is one that can be used.
func (b *backend) Ping(ctx context.Context) error {
	d, err := b.enter(ctx)
	if err != nil {
		return failed("ping", err)
	}
	defer b.leave()
	if err := unix.Faccessat(d.fd, ".", unix.W_OK|unix.X_OK, 0); err != nil {
		return failed("ping", d.trouble("", err))
	}
	return nil
}

// Diagnose implements [driver.Doctor].
func (b *backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	if err := b.Ping(ctx); err != nil {
		return nil, err
	}
	d, err := b.enter(ctx)
	if err != nil {
		return nil, failed("diagnose", err)
	}
	defer b.leave()
	var found []driver.Finding
	add := func(id, level, text, advice string) {
		found = append(found, driver.Finding{ID: id, Level: level, Text: text, Advice: advice})
	}
	d.examine(add)
	if err := d.examineFiles(ctx, add); err != nil {
		return nil, failed("diagnose", err)
	}
	rank := []string{"error", "warning", "info"}
	slices.SortStableFunc(found, func(x, y driver.Finding) int { return slices.Index(rank, x.Level) - slices.Index(rank, y.Level) })
	return found, nil
}

// examine looks at the directory and the clock. What makes a directory unusable was found when it was opened.
func (d *dir) examine(add func(id, level, text, advice string)) {
	add("file-directory", "info", "locks are in "+d.path, "")
	var s unix.Stat_t
	switch err := unix.Fstat(d.fd, &s); {
	case err != nil:
		add("file-mode", "warning", d.path+": its mode cannot be told: "+err.Error(), "")
	case s.Mode&0o002 != 0 || !d.group && s.Mode&0o020 != 0:
		add("file-mode", "error", "others can write to "+d.path+", and remove or forge locks", "chmod it to 0700, or to 2770 with group=on")
	case s.Mode&0o005 != 0 || !d.group && s.Mode&0o050 != 0:
		add("file-mode", "warning", "others can read the names of the locks in "+d.path, "chmod it to 0700, or to 2770 with group=on")
	}
	switch fs, err := fileSystem(d.fd); {
	case err != nil:
		add("file-system", "warning", "the file system of "+d.path+" cannot be told", "")
	case fs.memory:
		add("file-memory", "info", d.path+" is on "+fs.name+" and is empty after a restart, as are the locks in it", "")
	}
	if parent := filepath.Dir(d.path); unix.Lstat(parent, &s) == nil && s.Mode&0o002 != 0 && s.Mode&unix.S_ISVTX == 0 {
		add("file-parent", "warning", "others can write to "+parent+", and move the directory of the locks away", "chmod o-w it, or make it sticky")
	}
	if temp := filepath.Dir(d.path); strings.HasSuffix(temp, "tmp") {
		add("file-temporary", "info", d.path+" is among temporary files, where files that were not used for days may be removed; a held lock's is used", "")
	}
}

// examineFiles looks for files that cannot be believed.
func (d *dir) examineFiles(ctx context.Context, add func(id, level, text, advice string)) error {
	names, err := d.names()
	if err != nil {
		return err
	}
	files, bad := 0, 0
	for _, name := range names {
		if !isKeyFile(name) {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		files++
		if _, err := d.look(name); err != nil {
			if bad++; bad <= maxBad {
				add("file-damaged", "error", err.Error(), "its lock is given to nobody until then")
			}
		}
	}
	if more := bad - maxBad; more > 0 {
		add("file-damaged", "error", fmt.Sprintf("%d more files cannot be read", more), "their locks are given to nobody until they are removed")
	}
	add("file-keys", "info", fmt.Sprintf("there are files of %d locks; those that nobody needs are removed now and then", files), "")
	return nil
}
