-- renew makes holds last for at least their TTL from now. It never creates a key and never shortens. Twice an hour, by the clock that the fence is, it
-- renews the fence too, which would otherwise be forgotten while the lock is held.
--
-- KEYS  the locks
-- ARGV  for each of them 'd:' and the token, and the TTL in ms
--
-- Returns for each the milliseconds that are left and the fence, as two numbers, or -1 and 0 if the token does not hold it.
local answer = {}
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
for i, key in ipairs(KEYS) do
  local me, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local value = redis.call('GET', key)
  if value and string.sub(value, 1, 34) == me then
    local left = redis.call('PTTL', key)
    if left < tonumber(ttl) then
      redis.call('PEXPIRE', key, ttl)
      left = tonumber(ttl)
    end
    local fence = tonumber(string.match(value, '^(%d+) ', 36))
    if (now - fence) % 1800000000 < left * 1000 then
      redis.call('PEXPIRE', key .. '{' .. key .. '}:f', left + 3600000)
    end
    answer[2 * i - 1], answer[2 * i] = left, fence
  else
    answer[2 * i - 1], answer[2 * i] = -1, 0
  end
end
return answer
