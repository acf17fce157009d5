-- release takes a token out: it passes the lock on if the token holds it, and out of the queue if it waits there.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 who waits
-- ARGV  1 'd:' and the token   2 '1' in a cluster
--
-- Returns 1, or 0 if the token was nowhere. With the first key alone, which works even while a cluster moves the slot, it returns 2 when the others are
-- needed.
local value = redis.call('GET', KEYS[1])
local holds = value and string.sub(value, 1, 34) == ARGV[1]
if holds and string.byte(value, 35) == 45 then
  redis.call('DEL', KEYS[1])
  return 1
end
if not KEYS[2] then
  return 2
end
--include fence.lua
--include give.lua
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if holds then
  give(now, ARGV[2])
  return 1
end
local token = string.sub(ARGV[1], 3)
if redis.call('LREM', KEYS[3], 1, token) == 0 then
  return 0
end
redis.call('HDEL', KEYS[4], token)
if value then
  nobody_waits()
else
  give(now, ARGV[2]) -- those who are left must not wait for each other
end
return 1
