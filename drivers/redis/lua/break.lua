-- break takes the lock from its holder if that is still the one with the given fence, and passes it on.
--
-- KEYS  1 the lock   and in a cluster   2 its fence   3 its queue   4 who waits
-- ARGV  1 the fence
--
-- Returns 1, or 5 if the lock is free and there are more in the queue than one call looks at; 0 if somebody else or nobody holds it.
local lock = KEYS[1]
--include value.lua
if not value or string.match(value, '^d:' .. string.rep('%x', 32) .. '[-+](%d+) ') ~= ARGV[1] then
  return 0
end
--include clock.lua
--include companions.lua
--include fence.lua
--include give.lua
local _, _, more = give()
return more and 5 or 1
