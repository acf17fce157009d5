-- acquire gets the lock, or enters the queue for it.
--
-- KEYS  1 the lock   and in a cluster   2 its fence   3 its queue   4 who waits
-- ARGV  1 'd:' and the token   2 the owner   3 the TTL in ms   4 how long the fence is kept, in ms   5 the channel to be told on; '' for no waiting
--
-- Returns the fence if the token holds the lock, or else {PTTL of the holder, last fence reserved, place in the queue, 1 if the holder is
-- a foreign one}.
--
-- SET NX decides the common case. The fence is the server's clock in µs, or the first one that is not reserved if that is greater; each grant reserves
-- 16. What is stored is the last of them, with a 'w' in front while somebody waits.
--
-- What the server refuses ends with '(not applied)' if the request has left nothing behind. An error that does not says nothing about that.
local lock = KEYS[1]
--include clock.lua
local set = redis.pcall('SET', lock, ARGV[1] .. '-' .. text .. ' ' .. ARGV[2], 'NX', 'PX', ARGV[3])
if set then
  if set.err then
    return { err = set.err .. ' (not applied)' }
  end
  local fence_key = KEYS[2] or lock .. (string.find(lock, '{', 1, true) and '%f' or '%{' .. lock .. '}f')
  local last = redis.pcall('SET', fence_key, string.format('%.0f', now + 15), 'PX', ARGV[4], 'GET')
  if not last then
    return now
  end
  local n = tonumber(last)
  if n and n < now then
    return now
  end
  if n then
    local fence = string.format('%.0f', n + 1)
    redis.call('SET', fence_key, string.format('%.0f', n + 16), 'PXAT', math.floor(n / 1000) + ARGV[4])
    redis.call('SET', lock, ARGV[1] .. '-' .. fence .. ' ' .. ARGV[2], 'PX', ARGV[3])
    return n + 1
  end
  if type(last) == 'table' and string.find(last.err, 'WRONGTYPE', 1, true) then
    -- It is none of ours, as companions.lua has it.
    redis.pcall('DEL', fence_key)
    last = redis.pcall('SET', fence_key, string.format('%.0f', now + 15), 'PX', ARGV[4], 'GET')
    if not last then
      return now
    end
  end
  redis.call('DEL', lock)
  if type(last) == 'table' then
    return { err = last.err .. ' (not applied)' }
  end
  -- Somebody waits, and comes first.
  n = tonumber(string.sub(last, 2)) or 0
  redis.call('SET', fence_key, last, 'PXAT', math.floor(math.max(n, now) / 1000) + ARGV[4])
end

local value = redis.pcall('GET', lock)
if type(value) == 'table' then
  return { err = value.err .. ' (not applied)' }
end
--include companions.lua
--include fence.lua
if value and string.sub(value, 1, 34) == ARGV[1] then
  return again(value, ARGV[3])
end
--include give.lua
--include queue.lua
local token = string.sub(ARGV[1], 3)
local noted, queued = false, false

-- wait enters the queue if the caller waits, and passes the lock on if it is free.
local function wait()
  local last, place = 0, 0
  if ARGV[5] ~= '' then
    if alive(token, ARGV[3], ARGV[5], ARGV[2]) then
      place = (own('LPOS', queue_key, token) or -1) + 1
    else
      noted = true
    end
    if place == 0 then
      place = own('RPUSH', queue_key, token)
      queued = true
    end
    last = seen(value, ARGV[3], place == 1 or now % 64 == 0)
  end
  if not value then
    local first, fence, more = give(token)
    if first == token then
      return fence
    end
    if not first and not more and place == 0 then
      -- Nobody who waited is alive.
      local fence = next_fence(ARGV[3], '')
      redis.call('SET', lock, ARGV[1] .. '-' .. fence .. ' ' .. ARGV[2], 'PX', ARGV[3])
      return tonumber(fence)
    end
    value, last = redis.call('GET', lock), reserved()
  end
  return waiting(value, last, place)
end

local function leave()
  if queued then
    redis.call('LREM', queue_key, 1, token)
  end
  if noted then
    redis.call('HDEL', who_key, token)
  end
end

-- Whoever may not do all of it must not stay in the queue. The lock itself is the last thing that is written for the token.
local done, answer = pcall(wait)
if done then
  return answer
end
if not pcall(leave) then
  error(answer, 0)
end
return { err = (type(answer) == 'table' and answer.err or answer) .. ' (not applied)' }
