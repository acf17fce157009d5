-- give passes the lock on to the first waiter that is alive, or frees it. Whoever held it must be known not to hold it any more. self is the token of
-- the caller, if that may be in the queue.
-- It returns the token and the fence of the new holder, or nothing.
--
-- A waiter that has been silent for 0.8 of its TTL is passed over, and so is one that nobody listens for, unless the server is part of a
-- cluster, where a subscriber may be on another node. A PUBLISH that is not allowed counts as heard: the waiter finds out by asking.
--
-- LPOP comes first because it is allowed on a server that is out of memory, and what follows it then is too.
local function give(now, cluster, self)
  for _ = 1, 64 do
    local token = redis.call('LPOP', KEYS[3])
    if not token then
      break
    end
    local who = redis.call('HGET', KEYS[4], token)
    redis.call('HDEL', KEYS[4], token)
    local seen, ttl, channel, owner = string.match(who or '', '^(%d+) (%d+) (%S+) (.*)$')
    if seen and (token == self or math.abs(now - seen * 1000) < ttl * 800) then
      local fence = math.max(now, fence_end() + 1)
      local text = string.format('%.0f', fence)
      local heard = token == self or redis.pcall('PUBLISH', channel, token .. ' ' .. text)
      if heard ~= 0 or cluster == '1' then
        local more = redis.call('LLEN', KEYS[3]) > 0
        redis.call('SET', KEYS[1], 'd:' .. token .. (more and '+' or '-') .. text .. ' ' .. owner, 'PX', ttl)
        redis.call('SET', KEYS[2], (more and 'w' or '') .. string.format('%.0f', fence + 15), 'PX', ttl + 3600000)
        return token, fence
      end
    end
  end
  redis.call('DEL', KEYS[1])
  nobody_waits()
end
