-- acquire gets the lock, or enters the queue for it.
--
-- KEYS  1 the lock   2 its fence   3 its queue   4 who waits
-- ARGV  1 'd:' and the token   2 the owner   3 the TTL in ms   4 the TTL and an hour in ms
--       5 the channel to be told on; '' for no waiting   6 '1' if the token may be in the queue already   7 '1' in a cluster
--
-- Returns the fence if the token holds the lock, or else {PTTL of the holder, last fence reserved, place in the queue, 1 if the holder is
-- a foreign one}.
--
-- SET NX decides the common case. The fence is the server's clock in µs, or one more than the last one reserved if that is greater; what is stored is
-- the end of the 16 fences that each grant reserves, with a 'w' in front while somebody waits.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local token = string.sub(ARGV[1], 3)
if redis.call('SET', KEYS[1], ARGV[1] .. '-' .. string.format('%.0f', now) .. ' ' .. ARGV[2], 'NX', 'PX', ARGV[3]) then
  local last = redis.call('SET', KEYS[2], now + 15, 'PX', ARGV[4], 'GET')
  if not last then
    return now
  end
  local n = tonumber(last)
  if n and n < now then
    return now
  end
  if n then
    local fence = n + 1
    redis.call('SET', KEYS[2], string.format('%.0f', fence + 15), 'PX', ARGV[4])
    redis.call('SET', KEYS[1], ARGV[1] .. '-' .. string.format('%.0f', fence) .. ' ' .. ARGV[2], 'PX', ARGV[3])
    return fence
  end
  -- Somebody waits, and comes first.
  redis.call('SET', KEYS[2], last, 'PX', ARGV[4])
  redis.call('DEL', KEYS[1])
end

local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 34) == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  return tonumber(string.match(value, '^(%d+) ', 36))
end
--include fence.lua
--include give.lua
--include queue.lua
local place = 0
if ARGV[5] ~= '' then
  if ARGV[6] == '1' then
    place = (redis.call('LPOS', KEYS[3], token) or -1) + 1
  end
  if place == 0 then
    place = redis.call('RPUSH', KEYS[3], token)
  end
  seen(value, token, now, ARGV[3], ARGV[5], ARGV[2], place == 1 or now % 64 == 0)
end
if not value then
  local first, fence = give(now, ARGV[7], token)
  if first == token then
    return fence
  end
  if not first and place == 0 and redis.call('LLEN', KEYS[3]) == 0 then
    -- Nobody who waited is alive.
    local taken = math.max(now, fence_end() + 1)
    redis.call('SET', KEYS[1], ARGV[1] .. '-' .. string.format('%.0f', taken) .. ' ' .. ARGV[2], 'PX', ARGV[3])
    redis.call('SET', KEYS[2], string.format('%.0f', taken + 15), 'PX', ARGV[4])
    return taken
  end
  value = redis.call('GET', KEYS[1])
end
return waiting(value, place)
