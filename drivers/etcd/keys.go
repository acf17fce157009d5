package etcd

import (
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

// name is the key of one claim. It is made of the token, so that every request by name is checked by token, and shows none of it.
func (b *Backend) name(c driver.Claim) string {
	sum := sha256.Sum256([]byte(c.Token))
	var digits [nameDigits]byte
	hex.Encode(digits[:], sum[:nameDigits/2])
	return b.folder(c.Key) + string(digits[:])
}

const nameDigits = 32

// lockOf returns the lock that a key in the store belongs to. Keys that are neither dlock's nor those of concurrency.Mutex and etcdctl belong to none.
func (b *Backend) lockOf(kv *mvccpb.KeyValue) (key string, ok bool) {
	rest, ok := strings.CutPrefix(string(kv.Key), b.opt.namespace)
	i := strings.LastIndexByte(rest, '/')
	if !ok || i <= 0 || kv.Lease == 0 {
		return "", false
	}
	folder, last := rest[:i], rest[i+1:]
	if last != strconv.FormatInt(kv.Lease, 16) && !isName(last) {
		return "", false
	}
	key = unescape(folder)
	return key, escape(key) == folder
}

func isName(s string) bool {
	return len(s) == nameDigits && strings.Trim(s, "0123456789abcdef") == ""
}

// seconds rounds up: a hold never ends early.
func seconds(ttl time.Duration) int64 { return int64((max(ttl, 1)-1)/time.Second) + 1 }
