-- What the lock has. One of another type is another's, of which '' says enough.
local value = redis.pcall('GET', lock)
if type(value) == 'table' then
  value = string.find(value.err, 'WRONGTYPE', 1, true) and '' or redis.call('GET', lock)
end
