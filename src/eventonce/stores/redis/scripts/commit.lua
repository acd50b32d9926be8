-- KEYS: what has taken effect. ARGV: for each key (or once for all) token 8, window 6, flags 1, version 8;
-- then the memos, if there are any, one for each key. flags: 1 version  2 memo.
-- Answers 1 or 0 for each key, as one string.

local FINISH = 23

-- The record that takes the place of a running one, or else the answer: nothing but its own text decides.
local function done(value, finish, memo)
  local token = string.sub(finish, 1, 8)
  local flags = value and string.byte(value, 1) or 0
  if not flagged(flags, 128) or string.sub(value, 2, 9) ~= token then return nil, '0' end
  local lease, tries = 0, 0
  if flagged(flags, 1) then lease, tries = struct.unpack('>I6I2', value, 10) end
  if lease == 0 then -- committed before and the reply was lost; or released, and then it is not ours
    return nil, (flagged(flags, 4) and tries == 0) and '1' or '0'
  end
  local window, wanted, version = struct.unpack('>I6Bc8', finish, 9)
  local r = { token = token, lease = 0, tries = 0, done_at = now, ends = now + window, took = tries }
  if flagged(wanted, 1) then r.version = version end
  if flagged(wanted, 2) then r.memo = memo end
  return packed(r), '1', ending(r.ends)
end

-- What is the same for many keys of a batch is worked out once.
local known, wanted, noted, kept, answer, ends

local answers = {}
for place, key in ipairs(KEYS) do
  local value, finish, memo = call('GET', key), own(ARGV[1], FINISH, place), ARGV[place + 1]
  if value ~= known or finish ~= wanted or memo ~= noted then
    known, wanted, noted = value, finish, memo
    kept, answer, ends = done(value, finish, memo)
  end
  if kept then call('SET', key, kept, 'PXAT', ends) end
  answers[place] = answer
end
return table.concat(answers)
