-- break takes the lock from its holder if that is still the one with the given fence, and passes it on.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 who waits
-- ARGV  1 the fence   2 '1' in a cluster
--
-- Returns 1, or 0 if somebody else or nobody holds it.
local value = redis.call('GET', KEYS[1])
if not value or string.match(value, '^d:' .. string.rep('%x', 32) .. '[-+](%d+) ') ~= ARGV[1] then
  return 0
end
--include fence.lua
--include give.lua
local t = redis.call('TIME')
give(t[1] * 1000000 + t[2], ARGV[2])
return 1
