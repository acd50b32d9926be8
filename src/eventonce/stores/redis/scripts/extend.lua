-- Extend claims. KEYS: their keys. ARGV: lease, and for each key (or once for all) token 8.
-- Returns 1 or 0 for each key, as one string.

local lease_end = now + tonumber(ARGV[1])
local answers = {}
for index, key in ipairs(KEYS) do
  local value = call('GET', key)
  local r = value and read(value)
  if r and r.lease > 0 and r.token == part_of(ARGV[2], 8, index) then
    r.lease, r.expires = lease_end, math.max(r.expires, lease_end)
    write(key, pack(r), r.expires)
    answers[index] = '1'
  else
    answers[index] = '0'
  end
end
return table.concat(answers)
