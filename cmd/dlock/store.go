package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// defaultDriver is used when nothing else is said.
const defaultDriver = "file"

// store is a backend seen through the user's prefix: the keys it takes and shows are without it.
type store struct {
	driver.Backend
	name, prefix string
}

// open loads the settings for cmd and opens the backend that they name. Nothing is sent yet.
func (s *settings) open(cmd *cobra.Command) (*store, error) {
	if err := s.load(cmd); err != nil {
		return nil, exit{code: exitUsage, err: err}
	}
	b, err := driver.Open(s.Driver, s.DSN)
	if err != nil {
		return nil, exit{code: exitUsage, err: err}
	}
	return &store{b, s.Driver, s.Prefix}, nil
}

// with opens the backend, calls f with a limited time, and closes the backend.
func (s *settings) with(cmd *cobra.Command, f func(context.Context, *store) error) error {
	st, err := s.open(cmd)
	if err != nil {
		return err
	}
	defer st.Close() //nolint:errcheck // nothing was locked that a failure could leave behind
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	defer cancel()
	return f(ctx, st)
}

// inspect describes the lock named key.
func (s *store) inspect(ctx context.Context, key string) (driver.Info, error) {
	err := errors.ErrUnsupported
	info := driver.Info{}
	if i, ok := s.Backend.(driver.Inspector); ok {
		info, err = i.Inspect(ctx, s.prefix+key)
	}
	info.Key = key
	return info, s.failed("show locks", err)
}

// list yields the held locks whose keys begin with prefix.
func (s *store) list(ctx context.Context, prefix string) iter.Seq2[driver.Info, error] {
	return func(yield func(driver.Info, error) bool) {
		i, ok := s.Backend.(driver.Inspector)
		if !ok {
			yield(driver.Info{}, s.failed("list locks", errors.ErrUnsupported))
			return
		}
		for info, err := range i.List(ctx, s.prefix+prefix) {
			info.Key = strings.TrimPrefix(info.Key, s.prefix)
			if !yield(info, s.failed("list locks", err)) {
				return
			}
		}
	}
}

// breakLock takes the lock from the holder that info shows, and from no other.
func (s *store) breakLock(ctx context.Context, info driver.Info) error {
	if info.Fence == 0 {
		return exit{code: exitUnavailable, err: fmt.Errorf("the holder of %q has no fence, by which alone it could be told from the next one", info.Key)}
	}
	err := errors.ErrUnsupported
	if b, ok := s.Backend.(driver.Breaker); ok {
		err = b.Break(ctx, s.prefix+info.Key, info.Fence)
	}
	if errors.Is(err, driver.ErrNotOwner) {
		return exit{code: exitNo, err: fmt.Errorf("nothing was broken: the holder of %q with fence %d does not have it any more", info.Key, info.Fence)}
	}
	return s.failed("break locks", err)
}

// failed says what could not be done, and which code that is.
func (s *store) failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		err = fmt.Errorf("the %s driver cannot %s", s.name, what)
	default:
		err = fmt.Errorf("cannot %s (%s): %w", what, s.name, err)
	}
	return exit{code: exitUnavailable, err: err}
}

// takesKey has cmd take one key, which may be in base64.
func takesKey(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		_, err := keyIn(cmd, args)
		return err
	}
	cmd.Flags().Bool("base64", false, "KEY is in base64, as key_base64 in the output of dlock ls --json")
	return cmd
}

// keyIn is the key among the arguments of a subcommand that takes one.
func keyIn(cmd *cobra.Command, args []string) (string, error) {
	if len(args) != 1 {
		return "", fmt.Errorf("%s wants one key, not %d", cmd.Name(), len(args))
	}
	key := args[0]
	if encoded, _ := cmd.Flags().GetBool("base64"); encoded {
		text, err := base64.StdEncoding.DecodeString(key)
		if err != nil {
			return "", errors.New("KEY is not in base64")
		}
		key = string(text)
	}
	return key, checkKey(key)
}

// checkKey refuses what no lock can be named.
func checkKey(key string) error {
	if key == "" || len(key) > dlock.MaxKeyLen {
		return fmt.Errorf("a key has 1 to %d bytes, not %d", dlock.MaxKeyLen, len(key))
	}
	return nil
}

// completeKeys offers the keys that are held, if the backend is quick about it.
func (s *settings) completeKeys(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	st, err := s.open(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer st.Close() //nolint:errcheck // nothing was locked
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var keys []string
	for info, err := range st.list(ctx, begun) {
		if err != nil || len(keys) == 1000 {
			break
		}
		if printable(info.Key) == info.Key {
			keys = append(keys, info.Key)
		}
	}
	return keys, cobra.ShellCompDirectiveNoFileComp
}
