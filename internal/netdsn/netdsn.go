// Package netdsn is what the DSNs of drivers for servers have in common.
package netdsn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// WithPort is host with port, unless it has one.
func WithPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}

// TLS reads the parameters ca, cert, key and insecure, and the files that they name. ServerName stays empty: every server is checked by the address it is
// dialled at, which need not be in the DSN.
func TLS(d *driver.DSN) (*tls.Config, error) {
	ca, cert, key := d.Text("ca", ""), d.Text("cert", ""), d.Text("key", "")
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: d.Bool("insecure", false)} //nolint:gosec // when asked for
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, Bad("parameter \"ca\" must be a file that can be read: %v", reason(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, Bad("parameter \"ca\" must be a file of PEM certificates")
		}
	}
	if (cert == "") != (key == "") {
		return nil, Bad("parameters \"cert\" and \"key\" go together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, Bad("parameters \"cert\" and \"key\" must be files of a PEM certificate and its key: %v", reason(err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// reason leaves the path out: the operator wrote it, and driver.Open would take it for a secret.
func reason(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Bad is an error about a DSN, whose text must not show a secret.
func Bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{driver.ErrInvalidDSN}, args...)...)
}
