package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// settings say where the locks are, and how to lock. They come from flags, the environment and a
// file, in that order.
type settings struct {
	dlock.Config
	timeout time.Duration // of subcommands that only look
	warned  bool          // about the file
}

// newSettings gives every subcommand of root the flags that name the backend. Their values are read
// by load: as the default of a flag, --help would show what is in the environment.
func newSettings(root *cobra.Command) *settings {
	f := root.PersistentFlags()
	f.String("config", "", "YAML `file` with settings; env DLOCK_CONFIG")
	f.String("driver", "", "`name` of the driver, see dlock drivers; env DLOCK_DRIVER (default "+defaultDriver+")")
	f.String("dsn", "", "where the locks are, in the driver's own form; env DLOCK_DSN")
	f.String("prefix", "", "put in front of every key in the store; env DLOCK_PREFIX")
	_ = root.RegisterFlagCompletionFunc("driver", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return dlock.Drivers(), cobra.ShellCompDirectiveNoFileComp
	})
	return &settings{}
}

// limited gives cmd, which only looks, a flag for how long it may take.
func (s *settings) limited(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().DurationVar(&s.timeout, "timeout", 10*time.Second, "how long the store may take to answer")
	return cmd
}

// load fills s for cmd. Its errors name the setting and show no value, which could be a secret in
// the wrong place.
func (s *settings) load(cmd *cobra.Command) error {
	s.Config = dlock.Config{Driver: defaultDriver}
	flags := cmd.Flags()
	path, _ := flags.GetString("config")
	if !flags.Changed("config") {
		path = os.Getenv("DLOCK_CONFIG")
	}
	if path != "" {
		if err := s.readFile(path); err != nil {
			return fmt.Errorf("config file %s: %w", path, err)
		}
	}
	for _, f := range s.fields() {
		name := "DLOCK_" + strings.ToUpper(f.name)
		if text := os.Getenv(name); text != "" {
			if err := f.set(text); err != nil {
				return fmt.Errorf("%s %w", name, err)
			}
		}
		if flag := flags.Lookup(f.name); flag != nil && flag.Changed {
			if err := f.set(flag.Value.String()); err != nil {
				return fmt.Errorf("--%s %w", f.name, err)
			}
		}
	}
	return nil
}

// readFile takes what is in the YAML file at path.
func (s *settings) readFile(path string) error {
	text, mode, err := readWithMode(path)
	if err != nil {
		var why *os.PathError
		if errors.As(err, &why) {
			err = why.Err
		}
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return notYAML(err)
	}
	if len(doc.Content) == 0 {
		return nil
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return errors.New("want lines such as driver: redis")
	}
	err = s.readPairs(doc.Content[0].Content)
	if exposed := exposure(mode); exposed != "" && hasPassword(s.DSN) && !s.warned {
		s.warned = true
		complain(fmt.Errorf("warning: config file %s has a password in it and mode %04o: %s; chmod 600 %[1]s",
			path, mode, exposed))
	}
	return err
}

func readWithMode(path string) (text []byte, mode fs.FileMode, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	text, err = io.ReadAll(f)
	return text, info.Mode().Perm(), err
}

// exposure says what a file's mode allows to others than its owner; "" if nothing.
func exposure(mode fs.FileMode) string {
	if runtime.GOOS == "windows" { // where the mode says nothing about others
		return ""
	}
	who, may := "every user", mode|mode>>3
	if mode&0o006 == 0 {
		who = "its group"
	}
	switch may & 0o006 {
	case 0o004:
		return who + " can read it"
	case 0o002:
		return who + " can change it"
	case 0o006:
		return who + " can read or change it"
	}
	return ""
}

// hasPassword reports whether there may be one in dsn.
func hasPassword(dsn string) bool {
	scheme, rest, _ := strings.Cut(dsn, "://")
	d, err := driver.ParseDSN(dsn, scheme)
	if err != nil {
		return strings.Contains(rest, "@") || strings.Contains(rest, "password=")
	}
	return d.Password != "" || d.Text("sentinel_password", "") != ""
}

// notYAML keeps the line of a syntax error, and not its text, which may quote what is in the file.
func notYAML(err error) error {
	var line int
	if _, e := fmt.Sscanf(err.Error(), "yaml: line %d:", &line); e == nil {
		return fmt.Errorf("not YAML, at line %d or the one before", line)
	}
	return errors.New("not YAML")
}

// readPairs takes names and values in turn.
func (s *settings) readPairs(nodes []*yaml.Node) error {
	fields := s.fields()
	var seen, unknown []string
	for i := 0; i+1 < len(nodes); i += 2 {
		name, value := nodes[i].Value, nodes[i+1]
		at := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		switch {
		case at < 0:
			unknown = append(unknown, strconv.Quote(driver.RedactName(name)))
			continue
		case slices.Contains(seen, name):
			return fmt.Errorf("%s is given twice", name)
		case value.Kind != yaml.ScalarNode:
			return fmt.Errorf("%s must be a single value", name)
		}
		seen = append(seen, name)
		if value.Tag == "!!null" {
			continue
		}
		if err := fields[at].set(value.Value); err != nil {
			return fmt.Errorf("%s %w", name, err)
		}
	}
	if unknown != nil {
		var names []string
		for _, f := range fields {
			names = append(names, f.name)
		}
		return fmt.Errorf("unknown key %s; accepted: %s", strings.Join(unknown, ", "), strings.Join(names, ", "))
	}
	return nil
}

// field is a setting under the name that it has in files.
type field struct {
	name string
	ptr  any
}

func (s *settings) fields() []field {
	v := reflect.ValueOf(&s.Config).Elem()
	fields := make([]field, v.NumField())
	for i := range fields {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		fields[i] = field{name, v.Field(i).Addr().Interface()}
	}
	return fields
}

// set reads text, as it is written in a file, a variable or a flag.
func (f field) set(text string) (err error) {
	switch p := f.ptr.(type) {
	case *string:
		*p = text
	case *int:
		if *p, err = strconv.Atoi(text); err != nil {
			return errors.New("must be a whole number")
		}
	case *bool:
		if *p, err = strconv.ParseBool(text); err != nil {
			return errors.New("must be true or false")
		}
	case *time.Duration:
		if *p, err = time.ParseDuration(text); err != nil {
			return errors.New("must be a duration such as 30s")
		}
	default:
		return fmt.Errorf("is a %T, which this command cannot read", f.ptr)
	}
	return nil
}
