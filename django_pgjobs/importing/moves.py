"""The scripts by which Redis moves messages to a key of ours and back, each in one step that nothing there divides."""

from __future__ import annotations

MOVE = """
local scored, moved, changed = redis.call('TYPE', KEYS[1]).ok == 'zset', {}, {}

local function is_there(member)
  if scored then return redis.call('ZSCORE', KEYS[1], member) end
  return redis.call('LPOS', KEYS[1], member)
end

local function is_same(hash, needed, first, size)
  if redis.call('HLEN', hash) ~= size / 2 or redis.call('EXISTS', needed) == 1 then return false end
  for at = first, first + size - 1, 2 do
    if redis.call('HGET', hash, ARGV[at]) ~= ARGV[at + 1] then return false end
  end
  return true
end

local function move(member)
  if not scored then
    local found = redis.call('LREM', KEYS[1], ARGV[2], member) == 1
    if found then redis.call(ARGV[1], KEYS[2], member) end
    return found
  end
  local score = redis.call('ZSCORE', KEYS[1], member)
  if score then
    redis.call('ZREM', KEYS[1], member)
    redis.call('ZADD', KEYS[2], 'NX', score, member)
  end
  return score
end

local at, number = 3, 0
while at <= #ARGV do
  local member, hash, target, needed, size = unpack(ARGV, at, at + 4)
  size = tonumber(size)
  if size > 0 and not is_same(hash, needed, at + 5, size) then
    if is_there(member) then changed[#changed + 1] = number end
  elseif move(member) then
    moved[#moved + 1] = number
    if hash ~= '' and redis.call('EXISTS', hash) == 1 then
      if size > 0 or redis.call('EXISTS', target) == 0 then redis.call('RENAME', hash, target)
      else redis.call('DEL', hash) end
    end
  end
  at, number = at + 5 + size, number + 1
end
return {moved, changed}
"""
"""Moves messages from a key to another, those that are there, with their hashes; returns their numbers.

Also returns the numbers of those that stay, since their hashes are not what was read, or they are needed. On the way
back, where nothing was read, the hash that a producer has written since remains, as if ours had been there before it.
"""

SETTLE = """
local remove = redis.call('TYPE', KEYS[1]).ok == 'zset' and {'ZREM', KEYS[1]} or {'LREM', KEYS[1], 1}
for at = 1, #ARGV, 2 do
  remove[#remove + 1] = ARGV[at]
  if redis.call(unpack(remove)) == 1 and ARGV[at + 1] ~= '' then redis.call('DEL', ARGV[at + 1]) end
  remove[#remove] = nil
end
"""
"""Deletes messages from our key, and the hashes of those that were there: another process may have done so before."""

RETURN = """
if redis.call('SADD', KEYS[2], ARGV[1]) == 1 then
  if ARGV[3] == '' then redis.call(ARGV[4], KEYS[1], ARGV[2])
  else redis.call('ZADD', KEYS[1], 'NX', ARGV[3], ARGV[2]) end
  if #ARGV > 4 and redis.call('EXISTS', KEYS[3]) == 0 then redis.call('HSET', KEYS[3], unpack(ARGV, 5)) end
end
"""
"""Lets a message wait again, unless it does so already, with the fields of its hash, if there is no newer one."""
