-- The server's clock in µs, as text and as a number. Nothing has been written before.
local t = redis.pcall('TIME')
if t.err then
  return { err = t.err .. ' (not applied)' }
end
local text = t[1] .. string.sub('00000' .. t[2], -6)
local now = tonumber(text)
