-- release takes a token out: it passes the lock on if the token holds it, and out of the queue if it waits there.
--
-- KEYS  1 the lock   and in a cluster, if they are needed   2 its fence   3 its queue   4 who waits
-- ARGV  1 'd:' and the token   2 '1' in a cluster
--
-- Returns 1, or 0 if the token was nowhere, and 4 more if the lock is free and there are more in the queue than one call looks at: then it is to be called
-- again. In a cluster with the first key alone, which works even while the slot is being moved, it returns 2 when the others are needed.
local lock = KEYS[1]
--include value.lua
local holds = value and string.sub(value, 1, 34) == ARGV[1]
if holds and string.byte(value, 35) == 45 then
  redis.call('DEL', lock)
  return 1
end
if ARGV[2] and not KEYS[2] then
  return 2
end
--include clock.lua
--include companions.lua
--include fence.lua
--include give.lua
local gone = 1
if not holds then
  local token = string.sub(ARGV[1], 3)
  gone = own('LREM', queue_key, 1, token)
  if gone == 1 then
    own('HDEL', who_key, token)
  end
  if value or redis.call('EXISTS', queue_key) == 0 then
    if gone == 1 then
      nobody_waits()
    end
    return gone
  end
end
-- Those who are left must not wait for each other.
local _, _, more = give()
return more and gone + 4 or gone
