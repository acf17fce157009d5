package etcd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// fences is how many fences each grant reserves: the next key has a greater create revision.
const fences = 256

func fenceOf(createRevision int64) uint64 { return uint64(createRevision) * fences }

// revisionOf is the create revision of the grant that fence is the first of; 0 if there is none.
func revisionOf(fence uint64) int64 {
	if fence%fences != 0 || fence/fences > math.MaxInt64 {
		return 0
	}
	return int64(fence / fences)
}

// escape makes one path element of a lock's key, byte by byte, so that no lock is below another one.
var escape = strings.NewReplacer("%", "%25", "/", "%2F").Replace

var unescape = strings.NewReplacer("%25", "%", "%2F", "/").Replace

// folder is what the keys of all who want a lock begin with.
func (b *Backend) folder(key string) string { return b.opt.namespace + escape(key) + "/" }

// isOwn reports whether this backend gave a key its name.
func (b *Backend) isOwn(name string) bool {
	return strings.HasPrefix(name[strings.LastIndexByte(name, '/')+1:], b.id)
}

// mark is what a claim's key is known by: the end of its value. It is made of the token, and shows none of it.
func mark(c driver.Claim) string {
	sum := sha256.Sum256([]byte(c.Token))
	var digits [markDigits]byte
	hex.Encode(digits[:], sum[:markDigits/2])
	return string(digits[:])
}

const markDigits = 32

// index is where a claim is in the book. It ends in the mark.
func (b *Backend) index(c driver.Claim) string { return b.folder(c.Key) + mark(c) }

// value is what the key of the claim with this index says: who it is, for people, and the mark.
func value(owner, index string) string { return owner + " " + index[len(index)-markDigits:] }

// indexOf is where the claim of a key of ours is in the book; empty if dlock did not write it.
func indexOf(kv *mvccpb.KeyValue) string {
	_, m := parseValue(kv)
	if m == "" {
		return ""
	}
	return string(kv.Key[:bytes.LastIndexByte(kv.Key, '/')+1]) + m
}

// parseValue takes a value apart. One that dlock did not write has no mark.
func parseValue(kv *mvccpb.KeyValue) (owner, mark string) {
	v := string(kv.Value)
	i := len(v) - markDigits - 1
	if i < 0 || v[i] != ' ' || strings.Trim(v[i+1:], "0123456789abcdef") != "" {
		return v, ""
	}
	return v[:i], v[i+1:]
}

// lockOf returns the lock that a key in the store belongs to. Keys that are neither dlock's nor those of concurrency.Mutex and etcdctl belong to none.
func (b *Backend) lockOf(kv *mvccpb.KeyValue) (key string, ok bool) {
	rest, ok := strings.CutPrefix(string(kv.Key), b.opt.namespace)
	i := strings.LastIndexByte(rest, '/')
	if !ok || i <= 0 || kv.Lease == 0 {
		return "", false
	}
	if _, mark := parseValue(kv); mark == "" && rest[i+1:] != strconv.FormatInt(kv.Lease, 16) {
		return "", false
	}
	key = unescape(rest[:i])
	return key, escape(key) == rest[:i]
}

// seconds rounds up: a hold never ends early.
func seconds(ttl time.Duration) int64 { return int64((max(ttl, 1)-1)/time.Second) + 1 }
