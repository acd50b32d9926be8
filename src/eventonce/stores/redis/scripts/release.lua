-- Release claims. KEYS: their keys. ARGV: for each key (or once for all) token 8, window 6, flags 1. Then the errors,
-- one for each key, if there are any. flags: 1 error.
-- Returns 1 or 0 for each key, as one string.

local RELEASE = 15

local function release(key, r, arguments, text)
  local token, window, flags = struct.unpack('>c8I6B', arguments)
  if not r or r.token ~= token or (r.lease == 0 and r.tries == 0) then return '0' end
  if r.lease == 0 then return '1' end -- released before and the reply was lost
  r.lease = 0
  if flagged(flags, 1) then
    r.error, r.expires = text, math.max(r.ends, now + keep(window))
    write(key, pack(r), r.expires)
    return '1'
  end
  r.tries = r.tries - 1
  if r.tries == 0 and r.done_at == 0 then
    call('DEL', key)
    return '1'
  end
  r.token = '' -- without one, no late call of the old owner can change the record
  if r.tries == 0 then r.trying, r.expires = nil, r.ends end
  write(key, pack(r), r.expires)
  return '1'
end

local answers = {}
for index, key in ipairs(KEYS) do
  local value = call('GET', key)
  answers[index] = release(key, value and read(value), part_of(ARGV[1], RELEASE, index), ARGV[index + 1])
end
return table.concat(answers)
