-- KEYS: claims. ARGV: lease, and for each key (or once for all) token 8. Answers 1 or 0 for each key, as one string.

local ends = now + tonumber(ARGV[1])
local answers = {}
for place, key in ipairs(KEYS) do
  local value = call('GET', key)
  local r = value and read(value)
  if r and r.lease > 0 and r.token == own(ARGV[2], 8, place) then
    r.lease, r.expires = ends, math.max(r.expires, ends)
    write(key, packed(r), r.expires)
    answers[place] = '1'
  else
    answers[place] = '0'
  end
end
return table.concat(answers)
