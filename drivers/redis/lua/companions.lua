-- The companions of a lock are in its slot. Outside a cluster nobody has to know of them beforehand, so that they are not sent. A lock that has a brace has a hash
-- tag; in any other name the tag is put into the companions'.
local stem = lock .. '%'
if not string.find(lock, '{', 1, true) then
  stem = stem .. '{' .. lock .. '}'
end
local fence_key, queue_key, who_key = KEYS[2] or stem .. 'f', KEYS[3] or stem .. 'q', KEYS[4] or stem .. 'w'

-- own runs a command on a companion. One of another type is none of ours: it is removed, and must not bar the way of a lock. What is refused for another reason
-- is refused again, as an error of the script.
local function own(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then
    redis.call('DEL', key)
  end
  return redis.call(command, key, ...)
end
