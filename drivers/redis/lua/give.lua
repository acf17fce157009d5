-- give passes the lock on to the first waiter that is alive, or frees it. Whoever held it must be known not to hold it any more. self is the token of
-- the caller, if that may be in the queue.
-- It returns the token and the fence of the new holder; or nil, nil, and whether there are more in the queue than one call looks at.
--
-- A waiter that has been silent for 0.8 of its TTL is passed over, and so is one that nobody listens for, unless the server is part of a
-- cluster, where a subscriber may be on another node. A PUBLISH that is not allowed counts as heard: the waiter finds out by asking.
--
-- LPOP comes first because it is allowed on a server that is out of memory, and what follows it then is too.
local function give(self)
  for _ = 1, 64 do
    local token = own('LPOP', queue_key)
    if not token then
      break
    end
    local who = own('HGET', who_key, token)
    redis.call('HDEL', who_key, token)
    local at, ttl, channel, owner = string.match(who or '', '^(%d+) (%d+) (%S+) (.*)$')
    if at and (token == self or math.abs(now - at) < ttl * 800) then
      local more = redis.call('LLEN', queue_key) > 0
      local fence = next_fence(ttl, more and 'w' or '')
      local heard = token == self or redis.pcall('PUBLISH', channel, token .. ' ' .. fence)
      if heard ~= 0 or KEYS[2] then
        redis.call('SET', lock, 'd:' .. token .. (more and '+' or '-') .. fence .. ' ' .. owner, 'PX', ttl)
        return token, tonumber(fence)
      end
    end
  end
  redis.call('DEL', lock)
  return nil, nil, not nobody_waits()
end
