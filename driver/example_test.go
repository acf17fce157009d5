package driver_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// A driver names its schemes, reads the parameters it knows, and lets Err refuse the rest.
func ExampleParseDSN() {
	parse := func(dsn string) {
		d, err := driver.ParseDSN(dsn, "mystore")
		if err != nil {
			fmt.Println(err)
			return
		}
		timeout := d.Duration("timeout", 3*time.Second)
		if err := d.Err(); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d, d.Hosts, timeout)
	}
	parse("mystore://user:s3cret@a:1,b:2/locks?timeout=500ms")
	parse("mystore://a?timeout=soon")
	parse("mystore://a?colour=red")
	parse("mystore://user:s3/cret@a")
	// Output:
	// mystore://xxxxx@a:1,b:2/locks?timeout=xxxxx [a:1 b:2] 500ms
	// invalid DSN: parameter "timeout" must be a duration such as 500ms or 3s
	// invalid DSN: unknown parameter "colour"; accepted: timeout
	// invalid DSN: '@' after the host, and '#', must be written %40 and %23 (is the password percent-encoded?)
}

// A driver whose client has a parser of its own reads what is meant for it, and hands on the rest.
func ExampleDSN_Rest() {
	d, err := driver.ParseDSN("postgres://app@db.example:5432/locks?sslmode=verify-full&table=dlock", "postgres")
	if err != nil {
		fmt.Println(err)
		return
	}
	table := d.Text("table", "locks")
	rest := d.Rest() // for pgx.ParseConfig
	fmt.Println(table, d.Err())
	fmt.Println(rest)
	// Output:
	// dlock <nil>
	// postgres://app@db.example:5432/locks?sslmode=verify-full
}

type exampleDriver struct{}

// Open would return a Backend of the store.
func (exampleDriver) Open(dsn string) (driver.Backend, error) {
	if _, err := driver.ParseDSN(dsn, "example"); err != nil {
		return nil, fmt.Errorf("example: %w", err)
	}
	return nil, errors.ErrUnsupported
}

// A driver's package does this in its init function.
func init() { driver.Register("example", exampleDriver{}) }

func ExampleRegister() {
	_, err := driver.Open("example", "redis://user:s3cret@host")
	fmt.Println(err)
	fmt.Println(errors.Is(err, driver.ErrInvalidDSN))
	// Output:
	// example: invalid DSN: it must begin with example://
	// true
}
