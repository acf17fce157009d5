-- reassert is what a waiter asks from time to time. It never adds to the queue and never takes a free lock past it, so that one which comes late does
-- no harm.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 who waits
-- ARGV  1 'd:' and the token   2 the owner   3 the TTL in ms   4 the channel to be told on   5 '1' in a cluster
--
-- Returns the fence if the token holds the lock, which then has its full TTL again; -1 if the token is nowhere; or else what acquire returns.
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 34) == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  return tonumber(string.match(value, '^(%d+) ', 36))
end
local token = string.sub(ARGV[1], 3)
local place = redis.call('LPOS', KEYS[3], token)
if not place then
  return -1
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
--include fence.lua
--include give.lua
--include queue.lua
seen(value, token, now, ARGV[3], ARGV[4], ARGV[2], true)
if not value then
  local first, fence = give(now, ARGV[5], token)
  if first == token then
    return fence
  end
  place = redis.call('LPOS', KEYS[3], token) or 0
  value = redis.call('GET', KEYS[1])
end
return waiting(value, place + 1)
