-- last_of returns the last fence that was reserved, which is what is stored, perhaps with a 'w' in front.
local function last_of(stored)
  if string.byte(stored) == 119 then
    stored = string.sub(stored, 2)
  end
  return tonumber(stored) or 0
end

-- reserved returns the last fence that was ever reserved for this lock, 0 if none is known.
local function reserved()
  return last_of(own('GET', fence_key) or '0')
end

-- kept is until when a fence is kept, in ms of the server's clock: for the TTL and five minutes more, from now or from the fence, whichever is later. So the
-- clock has passed the fence when it is forgotten, and the next one, which is taken from the clock, is greater. A clock that is set back only makes it last longer.
local function kept(last, ttl)
  return math.floor(math.max(last, now) / 1000) + ttl + 301000
end

-- raise keeps the fence for a hold or a wait that lasts for ttl from now on, and never for less long than it would have been: whoever holds the lock may do
-- so for much longer than those who wait. Once a minute is enough.
local function raise(last, ttl)
  local left = kept(last, ttl) - math.floor(now / 1000)
  if redis.call('PTTL', fence_key) < left - 60000 then
    redis.call('PEXPIRE', fence_key, left)
  end
end

-- next_fence reserves fences for a grant with this TTL, and returns the first, as text. mark is 'w' if somebody waits, or else ''.
local function next_fence(ttl, mark)
  local stored = own('SET', fence_key, mark .. string.format('%.0f', now + 15), 'PX', ttl + 301000, 'GET')
  local last = stored and last_of(stored) or 0
  if last < now then
    return text
  end
  redis.call('SET', fence_key, mark .. string.format('%.0f', last + 16), 'PXAT', kept(last + 16, ttl))
  return string.format('%.0f', last + 1)
end

-- again counts a holder's TTL anew, unless more is left, and returns its fence. That is a write, for replicas to acknowledge, unless the hold is longer.
local function again(value, ttl)
  if redis.call('PTTL', lock) <= tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
  local fence = tonumber(string.match(value, '^(%d+) ', 36))
  raise(fence + 15, ttl)
  return fence
end

-- nobody_waits takes the 'w' off the fence if the queue is empty, and reports whether it is.
local function nobody_waits()
  if redis.call('EXISTS', queue_key) == 1 then
    return false
  end
  redis.call('DEL', who_key)
  local stored = own('GET', fence_key)
  if stored and string.byte(stored) == 119 then
    redis.call('SET', fence_key, string.sub(stored, 2), 'KEEPTTL')
  end
  return true
end
