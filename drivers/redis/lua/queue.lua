-- ours reports whether a lock's value is one of dlock's: 'd:', 32 digits, the mark, the fence, a space, the owner.
local function ours(value)
  return string.find(value, '^d:%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x[-+]%d+ ') ~= nil
end

-- alive notes that a waiter is. It reports whether that was known of it before.
local function alive(token, ttl, channel, owner)
  return redis.call('HSET', who_key, token, text .. ' ' .. ttl .. ' ' .. channel .. ' ' .. owner) == 0
end

-- seen notes that there are waiters: in the lock's value, for whoever releases it, and in the fence, for whoever wants it. The expiry of the queue needs
-- no more than a look now and then. It returns the last fence that was reserved.
local function seen(value, ttl, refresh)
  local stored = redis.call('GET', fence_key) or '0'
  local marked = string.byte(stored) == 119
  if refresh or not marked then
    redis.call('PEXPIRE', queue_key, ttl + 3600000)
    redis.call('PEXPIRE', who_key, ttl + 3600000)
    keep((marked and '' or 'w') .. stored, ttl)
  end
  if value and string.byte(value, 35) == 45 and ours(value) then
    redis.call('SETRANGE', lock, 34, '+')
  end
  return first_of(stored) + 15
end

-- waiting is the answer to a waiter: how long the holder has got (-1: for ever, -2: there is none), the last fence that was reserved, the place in
-- the queue, and whether the holder is a client of another kind, which will not pass the lock on.
local function waiting(value, last, place)
  return { redis.call('PTTL', lock), last, place, (value and not ours(value)) and 1 or 0 }
end
