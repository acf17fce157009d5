// Package server is a lock server that keeps its locks in memory. See package lockd for what it is asked and answers.
package server

import (
	"encoding/json"
	"net"
	"sync"
	"time"

	"example.com/lockd"
)

// Server is a lock table. Its zero value is empty.
type Server struct {
	mu    sync.Mutex
	locks map[string]*lock
	last  uint64 // the last fence
}

type lock struct {
	token   string
	fence   uint64
	expires time.Time
}

// Serve answers the connections of l until l is closed.
func (s *Server) Serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go s.answer(conn)
	}
}

// Delete removes the lock of key, whoever holds it.
func (s *Server) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, key)
}

// answer reads one request and writes one reply.
func (s *Server) answer(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	var q lockd.Request
	if json.NewDecoder(conn).Decode(&q) == nil {
		_ = json.NewEncoder(conn).Encode(s.apply(q))
	}
}

// apply does what q asks for in one step: the mutex is what makes it atomic.
func (s *Server) apply(q lockd.Request) lockd.Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, key := time.Now(), string(q.Key)
	l := s.locks[key]
	if l != nil && !now.Before(l.expires) {
		delete(s.locks, key)
		l = nil
	}
	mine := l != nil && l.token == q.Token
	switch {
	case q.Op == "ping":
		return lockd.Reply{Status: "ok"}
	case q.Op == "acquire" && l == nil:
		l = s.add(key, q.Token, now)
	case q.Op == "acquire" && !mine:
		return lockd.Reply{Status: "held"}
	case !mine:
		return lockd.Reply{Status: "not-owner"}
	case q.Op == "release":
		delete(s.locks, key)
	}
	if end := now.Add(q.TTL); q.Op != "release" && end.After(l.expires) {
		l.expires = end
	}
	return lockd.Reply{Status: "ok", Fence: l.fence}
}

// add makes a lock with the next fence, which rises also over restarts of the server.
func (s *Server) add(key, token string, now time.Time) *lock {
	if s.locks == nil {
		s.locks = map[string]*lock{}
	}
	s.last = max(s.last+1, uint64(now.UnixMicro()))
	l := &lock{token: token, fence: s.last}
	s.locks[key] = l
	return l
}
