-- ours reports whether a lock's value is one of dlock's: 'd:', 32 digits, the mark, the fence, a space, the owner.
local function ours(value)
  return string.find(value, '^d:' .. string.rep('%x', 32) .. '[-+]%d+ ') ~= nil
end

-- seen notes that a waiter is alive, and that there are waiters: in the lock's value, for whoever releases it, and in the fence, for whoever
-- wants it. The expiry of the queue needs no more than a look now and then.
local function seen(value, token, now, ttl, channel, owner, refresh)
  redis.call('HSET', KEYS[4], token, string.format('%.0f', now / 1000) .. ' ' .. ttl .. ' ' .. channel .. ' ' .. owner)
  local stored = redis.call('GET', KEYS[2]) or '0'
  local marked = string.byte(stored) == 119
  if refresh or not marked then
    redis.call('PEXPIRE', KEYS[3], ttl + 3600000)
    redis.call('PEXPIRE', KEYS[4], ttl + 3600000)
    redis.call('SET', KEYS[2], (marked and '' or 'w') .. stored, 'PX', ttl + 3600000)
  end
  if value and string.byte(value, 35) == 45 and ours(value) then
    redis.call('SETRANGE', KEYS[1], 34, '+')
  end
end

-- waiting is the answer to a waiter: how long the holder has got (-1: for ever, -2: there is none), the last fence that was reserved, the place in
-- the queue, and whether the holder is a client of another kind, which will not pass the lock on.
local function waiting(value, place)
  return { redis.call('PTTL', KEYS[1]), fence_end(), place, (value and not ours(value)) and 1 or 0 }
end
