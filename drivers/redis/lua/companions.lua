-- The companions of a lock are in its slot. Outside a cluster nobody has to know of them beforehand, so that they are not sent.
local stem = lock .. '{' .. lock .. '}:'
local fence_key, queue_key, who_key = KEYS[2] or stem .. 'f', KEYS[3] or stem .. 'q', KEYS[4] or stem .. 'w'
