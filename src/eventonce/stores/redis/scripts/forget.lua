-- KEYS: what to forget. Answers 1 or 0 for each key, as one string: whether it was known.

local answers = {}
for place, key in ipairs(KEYS) do
  answers[place] = call('DEL', key)
end
return table.concat(answers)
