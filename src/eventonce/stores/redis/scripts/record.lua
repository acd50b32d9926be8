-- The record of a key, as a string. This file is put before every other script. All numbers are big-endian.
--
--   flags 1                     1 unsettled  2 shared  4 done  8 version  16 memo  32 error  64 trying  128 token
--   token 8                     with 128
--   lease 6  tries 2  expires 6 with 1; without it, the record expires with its window
--   trying 8                    with 64; versions are 64 bits, shifted so that they are never negative
--   done_at 6  until 6  took 2  with 4
--   version 8                   with 8
--   error 2 + text              with 32
--   memo                        with 16, to the end
--
-- A Lua number is exact up to 53 bits. That is enough for times, but not for versions, which stay strings.

local FAILURES_FOR = 86400000
local FURTHEST_LEASE = 90000000 -- a later end comes from a clock that was ahead, so it counts as expired
local MOST_TRIES = 65535
local call = redis.call -- looked up once, not for each key
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function keep(window)
  return math.max(window, FAILURES_FOR)
end

-- A number as Redis reads it. Redis would convert a Lua number itself, but as a fraction, which takes longer.
local function whole(number)
  return string.format('%d', number)
end

local function flagged(flags, bit)
  return flags % (2 * bit) >= bit
end

local function read(value)
  local flags, at = string.byte(value, 1), 2
  local function take(length)
    at = at + length
    return string.sub(value, at - length, at - 1)
  end
  local r = { token = '', lease = 0, tries = 0, done_at = 0, ends = 0, took = 0, shared = flagged(flags, 2) }
  if flagged(flags, 128) then r.token = take(8) end
  if flagged(flags, 1) then r.lease, r.tries, r.expires = struct.unpack('>I6I2I6', take(14)) end
  if flagged(flags, 64) then r.trying = take(8) end
  if flagged(flags, 4) then r.done_at, r.ends, r.took = struct.unpack('>I6I6I2', take(14)) end
  if flagged(flags, 8) then r.version = take(8) end
  if flagged(flags, 32) then r.error = take(struct.unpack('>I2', take(2))) end
  if flagged(flags, 16) then r.memo = string.sub(value, at) end
  r.expires = r.expires or r.ends
  return r
end

local function pack(r)
  local flags, parts = 0, { '' }
  local function add(bit, ...)
    flags = flags + bit
    for _, part in ipairs({ ... }) do parts[#parts + 1] = part end
  end
  if r.shared then add(2) end
  if r.token ~= '' then add(128, r.token) end
  if r.lease > 0 or r.tries > 0 then add(1, struct.pack('>I6I2I6', r.lease, math.min(r.tries, MOST_TRIES), r.expires)) end
  if r.trying then add(64, r.trying) end
  if r.done_at > 0 then add(4, struct.pack('>I6I6I2', r.done_at, r.ends, math.min(r.took, MOST_TRIES))) end
  if r.version then add(8, r.version) end
  if r.error then add(32, struct.pack('>I2', #r.error), r.error) end
  if r.memo then add(16, r.memo) end
  parts[1] = string.char(flags)
  return table.concat(parts)
end

-- The time at which a key expires, as Redis reads it.
local function redis_time(expires)
  return whole(math.max(expires, now + 1))
end

local function write(key, value, expires)
  call('SET', key, value, 'PXAT', redis_time(expires))
end

-- The part of a packed list for the key at this index: each key has its own, or all share one.
local function part_of(list, length, index)
  if #list == length then return list end
  return string.sub(list, (index - 1) * length + 1, index * length)
end
