package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// memberLimit is how long one member may take to answer. One that does not is a finding, not a failure.
const memberLimit = 2 * time.Second

// defaultQuota is the size that a database may have when the server does not say otherwise.
const defaultQuota = 2 << 30

// Diagnose implements [driver.Doctor].
func (b *Backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	client, err := b.dial.get(ctx)
	if err != nil {
		return nil, b.fail("diagnose", err)
	}
	x := &examination{client: client}
	x.members(ctx)
	if err := x.alarms(ctx); err != nil {
		return nil, b.fail("diagnose", ended(ctx, err))
	}
	rank := []string{"error", "warning", "info"}
	slices.SortStableFunc(x.found, func(a, b driver.Finding) int { return slices.Index(rank, a.Level) - slices.Index(rank, b.Level) })
	return x.found, nil
}

// examination collects what is found.
type examination struct {
	client *clientv3.Client
	found  []driver.Finding
}

func (x *examination) add(id, level, text, advice string) {
	x.found = append(x.found, driver.Finding{ID: id, Level: level, Text: text, Advice: advice})
}

// members looks at every member that the client has been told of.
func (x *examination) members(ctx context.Context) {
	leaders := map[uint64]bool{}
	for _, endpoint := range x.client.Endpoints() {
		limited, cancel := context.WithTimeout(ctx, memberLimit)
		s, err := x.client.Status(limited, endpoint)
		cancel()
		if err != nil {
			x.add("etcd-member", "warning", endpoint+" does not answer: "+err.Error(), "see why; while a majority of the members answers locks go on")
			continue
		}
		x.member(endpoint, s)
		if s.Leader != 0 {
			leaders[s.Leader] = true
		}
	}
	if len(leaders) > 1 {
		x.add("etcd-leaders", "warning", "the members name different leaders", "look again: an election may be under way")
	}
	if len(x.client.Endpoints()) == 1 {
		x.add("etcd-endpoints", "info", "the client knows one member only", "name all members, so that locks go on when this one is down")
	}
}

// member looks at one member.
func (x *examination) member(endpoint string, s *clientv3.StatusResponse) {
	x.add("etcd-version", "info", endpoint+" has version "+s.Version, "")
	if older(s.Version, 3, 4) {
		x.add("etcd-version-old", "error", endpoint+": version "+s.Version+" is too old", "use etcd 3.4 or newer")
	}
	if s.Leader == 0 {
		x.add("etcd-no-leader", "error", endpoint+" knows no leader, so that it cannot grant locks", "see whether a majority of the members is up and connected")
	}
	if s.IsLearner {
		x.add("etcd-learner", "warning", endpoint+" is a learner and does not serve locks", "leave it out of the endpoints until it is promoted")
	}
	for _, e := range s.Errors {
		x.add("etcd-member-error", "error", endpoint+" reports: "+e, "see etcdctl endpoint status")
	}
	quota := s.DbSizeQuota
	if quota <= 0 {
		quota = defaultQuota
	}
	if s.DbSize > quota/10*8 {
		x.add("etcd-db-size", "warning", fmt.Sprintf("%s: the database has %d MB of %d MB; when it is full no lock is granted", endpoint, s.DbSize>>20, quota>>20),
			"compact and defragment it, or raise quota-backend-bytes; see auto-compaction-retention")
	}
}

// alarms asks for alarms, which only an administrator may where users have passwords.
func (x *examination) alarms(ctx context.Context) error {
	resp, err := x.client.AlarmList(ctx)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		x.add("etcd-alarms-unknown", "info", "the server does not let this user list its alarms", "")
		return nil
	case err != nil:
		return err
	}
	for _, a := range resp.Alarms {
		switch a.Alarm {
		case pb.AlarmType_NOSPACE:
			x.add("etcd-alarm-nospace", "error", fmt.Sprintf("member %x is out of space: no lock is granted", a.MemberID),
				"compact and defragment the database, then etcdctl alarm disarm")
		case pb.AlarmType_CORRUPT:
			x.add("etcd-alarm-corrupt", "error", fmt.Sprintf("the data of member %x is corrupt", a.MemberID), "replace the member")
		default:
			x.add("etcd-alarm", "warning", fmt.Sprintf("member %x has raised %v", a.MemberID, a.Alarm), "see etcdctl alarm list")
		}
	}
	return nil
}

// older reports whether version, such as 3.5.9, is below major.minor.
func older(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	x, err1 := strconv.Atoi(parts[0])
	y, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (x < major || x == major && y < minor)
}
