-- ours reports whether a lock's value is one of dlock's: 'd:', 32 digits, the mark, the fence, a space, the owner.
local function ours(value)
  return string.find(value, '^d:%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x[-+]%d+ ') ~= nil
end

-- alive notes that a waiter is. It reports whether that was known of it before.
local function alive(token, ttl, channel, owner)
  return own('HSET', who_key, token, text .. ' ' .. ttl .. ' ' .. channel .. ' ' .. owner) == 0
end

-- last_for keeps what is beside the lock for the TTL of a waiter and five minutes more, and never for less long than it would have been.
local function last_for(key, ttl)
  redis.call('PEXPIRE', key, math.max(ttl + 300000, redis.call('PTTL', key)))
end

-- seen notes that there are waiters: in the lock's value, for whoever releases it, and in the fence, for whoever wants it. The expiry of the queue needs
-- no more than a look now and then. It returns the last fence that was reserved. The first write is one that a server allows that is out of memory.
local function seen(value, ttl, refresh)
  local stored = own('GET', fence_key) or '0'
  local marked = string.byte(stored) == 119
  if refresh or not marked then
    last_for(queue_key, ttl)
    last_for(who_key, ttl)
    if not marked then
      redis.call('SET', fence_key, 'w' .. stored, 'KEEPTTL')
    end
    raise(last_of(stored), ttl)
  end
  if value and string.byte(value, 35) == 45 and ours(value) then
    redis.call('SETRANGE', lock, 34, '+')
  end
  return last_of(stored)
end

-- waiting is the answer to a waiter: how long the holder has got (-1: for ever, -2: there is none), the last fence that was reserved, the place in
-- the queue, and whether the holder is a client of another kind, which will not pass the lock on.
local function waiting(value, last, place)
  return { redis.call('PTTL', lock), last, place, (value and not ours(value)) and 1 or 0 }
end
