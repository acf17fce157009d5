-- reassert is what a waiter asks from time to time. It never adds to the queue and never takes a free lock past it, so that one which comes late does
-- no harm.
--
-- KEYS  1 the lock   and in a cluster   2 its fence   3 its queue   4 who waits
-- ARGV  1 'd:' and the token   2 the owner   3 the TTL in ms   4 the channel to be told on
--
-- Returns {fence} if the token had the lock already, which then has its full TTL again; the fence alone if this gave it the lock, of which no message
-- tells; -1 if the token is nowhere; or else what acquire returns.
local lock = KEYS[1]
local value = redis.pcall('GET', lock)
if type(value) == 'table' then
  return { err = value.err .. ' (not applied)' }
end
--include clock.lua
--include companions.lua
--include fence.lua
if value and string.sub(value, 1, 34) == ARGV[1] then
  return { again(value, ARGV[3]) }
end
--include give.lua
--include queue.lua
local token = string.sub(ARGV[1], 3)
local place = own('LPOS', queue_key, token)
if not place then
  return -1
end
local last = seen(value, ARGV[3], true)
alive(token, ARGV[3], ARGV[4], ARGV[2])
if not value then
  local first, fence = give(token)
  if first == token then
    return fence
  end
  place = own('LPOS', queue_key, token) or 0
  value, last = redis.call('GET', lock), reserved()
end
return waiting(value, last, place + 1)
