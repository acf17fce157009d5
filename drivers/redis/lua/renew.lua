-- renew makes holds last for at least their TTL from now. It never creates a key and never shortens. Twice an hour, for as long as a TTL, it renews the
-- fences too, which would otherwise be forgotten while the locks are held.
--
-- KEYS  the locks
-- ARGV  1 the TTL in ms   and then for each lock the token
--
-- Returns a text with a word for each: the fence, or the fence, a colon and the milliseconds left if those are more than the TTL, or a minus sign if the token
-- does not hold it. One text costs both sides less than a list of numbers.
--
-- GT spares a call where the server knows it: since Redis 7. There may be hundreds of locks, hence the local names.
local call, pcall, sub, find = redis.call, redis.pcall, string.sub, string.find
local ttl = ARGV[1]
local t = call('TIME')
local fences_too = (t[1] * 1000) % 1800000 < ttl + 1000
local answer = {}
for i = 1, #KEYS do
  local key = KEYS[i]
  local value = call('GET', key)
  if value and sub(value, 3, 34) == ARGV[i + 1] then
    local fence = sub(value, 36, (find(value, ' ', 36, true) or 36) - 1)
    local longest = ttl
    answer[i] = fence
    if pcall('PEXPIRE', key, ttl, 'GT') ~= 1 then
      local left = call('PTTL', key)
      if left > tonumber(ttl) then
        answer[i] = fence .. ':' .. left
        longest = left
      else
        call('PEXPIRE', key, ttl)
      end
    end
    if fences_too then
      pcall('PEXPIRE', key .. '{' .. key .. '}:f', longest + 3600000)
    end
  else
    answer[i] = '-'
  end
end
return table.concat(answer, ' ')
