-- Commit claims. KEYS: their keys. ARGV: for each key (or once for all) token 8, window 6, flags 1, version 8. Then the
-- memos, one for each key, if there are any. flags: 1 version  2 memo.
-- Returns 1 or 0 for each key, as one string.

local FINISH = 23

-- Returns the new record of a running claim, or nil, and the answer. They depend on the arguments only.
local function commit(value, finish, memo)
  local token = string.sub(finish, 1, 8)
  local flags = value and string.byte(value, 1) or 0
  if not flagged(flags, 128) or string.sub(value, 2, 9) ~= token then return nil, '0' end
  local lease, tries = 0, 0
  if flagged(flags, 1) then lease, tries = struct.unpack('>I6I2', value, 10) end
  if lease == 0 then -- committed before and the reply was lost, or released, and then it is not ours
    return nil, (flagged(flags, 4) and tries == 0) and '1' or '0'
  end
  local window, finish_flags, version = struct.unpack('>I6Bc8', finish, 9)
  local r = { token = token, lease = 0, tries = 0, done_at = now, ends = now + window, took = tries }
  if flagged(finish_flags, 1) then r.version = version end
  if flagged(finish_flags, 2) then r.memo = memo end
  return pack(r), '1', redis_time(r.ends)
end

-- Computed once for all keys of a batch with equal arguments.
local last_value, last_finish, last_memo, record, answer, expiry

local answers = {}
for index, key in ipairs(KEYS) do
  local value, finish, memo = call('GET', key), part_of(ARGV[1], FINISH, index), ARGV[index + 1]
  if value ~= last_value or finish ~= last_finish or memo ~= last_memo then
    last_value, last_finish, last_memo = value, finish, memo
    record, answer, expiry = commit(value, finish, memo)
  end
  if record then call('SET', key, record, 'PXAT', expiry) end
  answers[index] = answer
end
return table.concat(answers)
