-- first_of returns the first fence of those that were reserved last, which is what is stored, perhaps with a 'w' in front.
local function first_of(stored)
  if string.byte(stored) == 119 then
    stored = string.sub(stored, 2)
  end
  return tonumber(stored)
end

-- reserved returns the last fence that was ever reserved for this lock, 0 if none is known.
local function reserved()
  local stored = redis.call('GET', fence_key)
  return stored and first_of(stored) + 15 or 0
end

-- next_fence reserves fences for a grant with this TTL, and returns the first, as text. mark is 'w' if somebody waits, or else ''.
local function next_fence(ttl, mark)
  local stored = redis.call('SET', fence_key, mark .. text, 'PX', ttl + 3600000, 'GET')
  if not stored or first_of(stored) + 15 < now then
    return text
  end
  local fence = string.format('%.0f', first_of(stored) + 16)
  redis.call('SET', fence_key, mark .. fence, 'PX', ttl + 3600000)
  return fence
end

-- keep writes the fence without a new grant. It is kept for at least ttl and an hour more, and never for less long than it would have been: whoever holds
-- the lock may do so for much longer than those who wait.
local function keep(value, ttl)
  redis.call('SET', fence_key, value, 'PX', math.max(ttl + 3600000, redis.call('PTTL', fence_key)))
end

-- nobody_waits takes the 'w' off the fence if the queue is empty.
local function nobody_waits()
  if redis.call('EXISTS', queue_key) == 0 then
    redis.call('DEL', who_key)
    local stored = redis.call('GET', fence_key)
    if stored then
      keep(string.format('%.0f', first_of(stored)), 0)
    end
  end
end
