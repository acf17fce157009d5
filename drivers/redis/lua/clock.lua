-- The server's clock in µs, as text and as a number.
local t = redis.call('TIME')
local text = t[1] .. string.sub('00000' .. t[2], -6)
local now = tonumber(text)
