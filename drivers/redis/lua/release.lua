-- release takes a token out: it passes the lock on if the token holds it, and out of the queue if it waits there.
--
-- KEYS  1 the lock   and in a cluster, if they are needed   2 its fence   3 its queue   4 who waits
-- ARGV  1 'd:' and the token   2 '1' in a cluster
--
-- Returns 1, or 0 if the token was nowhere. In a cluster with the first key alone, which works even while the slot is being moved, it returns 2 when the
-- others are needed.
local lock = KEYS[1]
local value = redis.call('GET', lock)
local holds = value and string.sub(value, 1, 34) == ARGV[1]
if holds and string.byte(value, 35) == 45 then
  redis.call('DEL', lock)
  return 1
end
if ARGV[2] and not KEYS[2] then
  return 2
end
--include clock.lua
--include companions.lua
--include fence.lua
--include give.lua
if holds then
  give()
  return 1
end
local token = string.sub(ARGV[1], 3)
if redis.call('LREM', queue_key, 1, token) == 0 then
  return 0
end
redis.call('HDEL', who_key, token)
if value then
  nobody_waits()
else
  give() -- those who are left must not wait for each other
end
return 1
