-- fence_end returns the last fence that was ever reserved for this lock, 0 if none is known.
local function fence_end()
  local stored = redis.call('GET', KEYS[2])
  if not stored then
    return 0
  end
  return tonumber((string.gsub(stored, '^w', '')))
end

-- nobody_waits takes the 'w' off the fence if the queue is empty.
local function nobody_waits()
  if redis.call('EXISTS', KEYS[3]) == 0 then
    redis.call('DEL', KEYS[4])
    local last = fence_end()
    if last > 0 then
      redis.call('SET', KEYS[2], string.format('%.0f', last), 'PX', 3600000)
    end
  end
end
