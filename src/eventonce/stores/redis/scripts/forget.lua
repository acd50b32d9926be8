-- Forget keys. KEYS: the keys. Returns 1 or 0 for each key, as one string: whether it existed.

local answers = {}
for index, key in ipairs(KEYS) do
  answers[index] = call('DEL', key)
end
return table.concat(answers)
