-- renew makes holds last for at least their TTL from now. It never creates a key and never shortens. In every minute, for as long as a TTL, it renews the
-- fences too, which would otherwise be forgotten while the locks are held; those of holds that are younger than a minute can wait.
--
-- KEYS  the locks
-- ARGV  1 the TTL in ms   and then for each lock the token
--
-- Returns a text with a word for each: the fence, a minus sign if the token does not hold it, or an exclamation mark if the server refused it. One text costs both
-- sides less than a list of numbers. If the server refused some, it returns a list instead: that text, and what the server said of each of those.
--
-- No lock can spoil it for the others: what becomes of one that has another type, or is refused, is its own affair.
--
-- GT spares a call where the server knows it: since Redis 7. There may be hundreds of locks, hence the local names.
local call, pcall, sub, find = redis.call, redis.pcall, string.sub, string.find
local ttl = ARGV[1]
local t = call('TIME')
local now = t[1] * 1000000
local fences_too = now / 1000 % 60000 < ttl + 1000
local kept = ttl + 301000
local young = tonumber(ttl) < 60000 and now - 60000000 or math.huge -- a longer TTL may be that of an Extend

-- extend is for what GT does not do. It returns what the server said, if it refused.
local function extend(key)
  local left = pcall('PTTL', key)
  if type(left) == 'number' and left < tonumber(ttl) then
    left = pcall('PEXPIRE', key, ttl)
  end
  return type(left) == 'table' and left.err
end

-- keep has the fence of a lock kept as fence.lua says.
local function keep(key, fence)
  local left = kept
  if fence > now then
    left = left + math.floor((fence - now) / 1000)
  end
  local fence_key = key .. (find(key, '{', 1, true) and '%f' or '%{' .. key .. '}f')
  if type(pcall('PEXPIRE', fence_key, left, 'GT')) == 'table' then
    local has = pcall('PTTL', fence_key)
    if type(has) == 'number' and has < left then
      pcall('PEXPIRE', fence_key, left)
    end
  end
end

local answer, refused = {}, {}
for i = 1, #KEYS do
  local key = KEYS[i]
  local value = pcall('GET', key)
  local err
  if value and value.err then
    err = not find(value.err, 'WRONGTYPE', 1, true) and value.err
    answer[i] = '-'
  elseif value and sub(value, 3, 34) == ARGV[i + 1] then
    local fence = sub(value, 36, (find(value, ' ', 36, true) or 36) - 1)
    answer[i] = fence
    if pcall('PEXPIRE', key, ttl, 'GT') ~= 1 then
      err = extend(key)
    end
    if fences_too then
      fence = tonumber(fence) or 0
      if fence < young or fence > now then
        keep(key, fence)
      end
    end
  else
    answer[i] = '-'
  end
  if err then
    answer[i] = '!'
    refused[#refused + 1] = err
  end
end
local words = table.concat(answer, ' ')
return refused[1] and { words, unpack(refused) } or words
