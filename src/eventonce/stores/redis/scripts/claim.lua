-- Claim keys. KEYS: the keys. ARGV: token, lease, and for each key (or once for all) window 6, flags 1, version 8.
-- flags: 1 version  2 refresh  4 shared.
-- Returns a string with 1 for each key that was won as new and 0 for each other one. If there are others, it returns an
-- array with that string first, and then one for each: W won, D done, B busy and the rest of its lease, S stale.

local token, lease = ARGV[1], tonumber(ARGV[2])
local WANT = 15

local function higher(version, other)
  if not version or not other then return false end
  local high, low = struct.unpack('>I4I4', version)
  local other_high, other_low = struct.unpack('>I4I4', other)
  return high > other_high or (high == other_high and low > other_low)
end

local function won(r, suspect)
  return 'W' .. struct.pack('>I2', math.min(r.tries, MOST_TRIES)) .. (suspect and '1' or '0') .. (r.error and ('1' .. r.error) or '0')
end

local function take(key, r, want)
  local tries, suspect, failed = 1, false, nil
  if r.tries > 0 and not higher(want.version, r.trying) then
    suspect = r.lease > 0
    tries = r.tries + ((suspect and r.shared) and 0 or 1)
    failed = r.error
  end
  if tries == 1 then r.trying = want.version end
  r.token, r.lease, r.shared, r.tries, r.error = token, now + lease, want.shared, tries, failed
  r.expires = math.max(r.ends, now + lease + keep(want.window))
  write(key, pack(r), r.expires)
  return won(r, suspect)
end

local function extend_own(key, r, want)
  r.lease = now + lease
  r.expires = math.max(r.expires, now + lease + keep(want.window))
  write(key, pack(r), r.expires)
  return won(r, false)
end

local function answer_done(key, r, want, value)
  if want.version and r.version and want.version ~= r.version then
    return (not higher(want.version, r.version)) and ('S' .. r.version) or nil
  end
  if not want.refresh then return 'D' .. value end
  r.ends = math.max(r.ends, now + want.window)
  r.expires = math.max(r.expires, r.ends)
  value = pack(r)
  write(key, value, r.expires)
  return 'D' .. value
end

-- Keys that were done together often return together, so an answer that changes nothing is computed once.
local last_value, last_want, last_answer

local function remember(value, want, answer)
  last_value, last_want, last_answer = value, want, answer
  return answer
end

local function contend(key, want)
  local value = call('GET', key)
  if value == last_value and want == last_want then return last_answer end
  if not value then -- it expired just now
    return take(key, { token = '', lease = 0, tries = 0, done_at = 0, ends = 0, took = 0 }, want)
  end
  local r = read(value)
  if r.lease > 0 and r.token == token then return extend_own(key, r, want) end
  if r.lease > now and r.lease <= now + FURTHEST_LEASE then return remember(value, want, 'B' .. struct.pack('>I6', r.lease - now)) end
  local answer = r.done_at > 0 and r.ends > now and answer_done(key, r, want, value)
  if not answer then return take(key, r, want) end
  return want.refresh and answer or remember(value, want, answer)
end

-- The record of a new claim, computed once for all keys with the same request.
local last_text, want, new_record, expiry

local function read_want(text)
  if text == last_text then return end
  last_text = text
  local window, flags, version = struct.unpack('>I6Bc8', text)
  want = { window = window, refresh = flagged(flags, 2), shared = flagged(flags, 4), version = flagged(flags, 1) and version or nil }
  local expires = now + lease + keep(window)
  expiry = redis_time(expires)
  new_record = pack({
    token = token, lease = now + lease, tries = 1, expires = expires, shared = want.shared, trying = want.version,
    done_at = 0, ends = 0, took = 0,
  })
end

local new, others = {}, { '' }
for index, key in ipairs(KEYS) do
  read_want(part_of(ARGV[3], WANT, index))
  if call('SET', key, new_record, 'NX', 'PXAT', expiry) then
    new[index] = '1'
  else
    new[index] = '0'
    others[#others + 1] = contend(key, want)
  end
end
others[1] = table.concat(new)
return #others > 1 and others or others[1]
