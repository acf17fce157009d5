-- renew makes holds last for at least their TTL from now. It never creates a key and never shortens. Twice an hour, by the clock that the fence is, it
-- renews the fence too, which would otherwise be forgotten while the lock is held.
--
-- KEYS  the locks
-- ARGV  1 the TTL in ms   and then for each lock 'd:' and the token
--
-- Returns for each the fence, or {the fence, the milliseconds left} if those are more than the TTL, or -1 if the token does not hold it.
--
-- GT spares a call where the server knows it: since Redis 7.
local ttl = ARGV[1]
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local answer = {}
for i, key in ipairs(KEYS) do
  local value = redis.call('GET', key)
  if value and string.sub(value, 1, 34) == ARGV[i + 1] then
    local fence = tonumber(string.match(value, '^(%d+) ', 36))
    answer[i] = fence
    if redis.pcall('PEXPIRE', key, ttl, 'GT') ~= 1 then
      local left = redis.call('PTTL', key)
      if left > tonumber(ttl) then
        answer[i] = { fence, left }
      else
        redis.call('PEXPIRE', key, ttl)
      end
    end
    if (now - fence) % 1800000000 < ttl * 1000 then
      redis.pcall('PEXPIRE', key .. '{' .. key .. '}:f', ttl + 3600000)
    end
  else
    answer[i] = -1
  end
end
return answer
