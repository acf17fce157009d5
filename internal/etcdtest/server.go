package etcdtest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

const (
	variable = "DLOCK_ETCDTEST_MEMBER" // a process with this in its environment is a member, with these settings
	serving  = "serving"               // what a member writes to its standard output
)

// settings are what a member's process is told.
type settings struct {
	Name, Dir, Client, Peer string // Client and Peer are host:port
	Cluster                 string // name=URL of every member, with commas between
	Fsync                   bool
	Tick, Election          time.Duration
	Cert, Key, ClientCA     string
}

func (s settings) clientURL() *url.URL {
	if s.Cert != "" {
		return &url.URL{Scheme: "https", Host: s.Client}
	}
	return &url.URL{Scheme: "http", Host: s.Client}
}

func (s settings) peerURL() *url.URL { return &url.URL{Scheme: "http", Host: s.Peer} }

var called atomic.Bool // whether Main was

// Main is called first in TestMain. In a process that is meant to be a member it serves, and never returns.
func Main() {
	called.Store(true)
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	err := serve([]byte(text))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serve runs the member until it fails.
func serve(text []byte) error {
	var s settings
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	e, err := embed.StartEtcd(s.config())
	if err != nil {
		return err
	}
	select {
	case <-e.Server.ReadyNotify():
		fmt.Println(serving)
	case err := <-e.Err():
		return err
	}
	return <-e.Err()
}

func (s settings) config() *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = s.Name, filepath.Join(s.Dir, "data")
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*s.clientURL()}, []url.URL{*s.clientURL()}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*s.peerURL()}, []url.URL{*s.peerURL()}
	c.InitialCluster = s.Cluster
	c.TickMs, c.ElectionMs = uint(s.Tick.Milliseconds()), uint(s.Election.Milliseconds())
	c.UnsafeNoFsync = !s.Fsync
	c.LogLevel, c.LogOutputs = "error", []string{"stderr"}
	c.EnableGRPCGateway = false
	c.BcryptCost = 4 // the least; at the usual cost a password takes more than a second under the race detector
	c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = s.Cert, s.Key
	c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = s.ClientCA, s.ClientCA != ""
	return c
}
