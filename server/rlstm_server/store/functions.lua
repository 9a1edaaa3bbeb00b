#!lua name=rlstm_v2

-- One history a session: the only code that changes what is stored, run by Redis or Valkey, one call at a time.
--
-- A function is isolated but not rolled back: arguments are checked before the first write, and the write
-- that makes an operation visible (the version) comes last. Replies are arrays that begin with a word.
-- Keys of a session share a hash tag, keys of a tenant another: no function touches both.
--
--   session: head (hash), log (stream, ids <version>-0), ops (hash), tomb (string with an expiry),
--            named (hash: version|time|snapshot|info),
--            snap:<generation> (hash: chunks by number; with an expiry until something points to it),
--            puts (hash: generations that nothing points to yet)
--   tenant:  names (hash), index (by expiry), ids (by creation), creations (hash); hints, repaired when met or due
--
-- Both `ops` and `creations` are a window: `o:<operation>` says what is known, `r:<n mod size>` which operation
-- to forget when n comes round again; `a:<n mod size>` are the newest whole answers.
--
-- The state of a base, present or previous, is the field `<base>_state`, or lies in the chunks of the snapshot
-- that `<base>_snapshot` names as <generation>:<size>; the other of the two is empty.
--
-- The name of the library and of each function carries a number. It goes up when a function takes other
-- arguments or does other things, so that replicas of two releases work side by side on one store. `FORM` goes
-- up when what is stored can no longer be read by the release before.

local FORM = '2'
local AN_HOUR_MS = 3600000

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

local function is_count(text)
  return text ~= nil and string.match(text, '^%d+$') ~= nil and tonumber(text) < 9007199254740992
end

local function is_positive(text)
  return is_count(text) and tonumber(text) > 0
end

local function is_snapshot(text)
  local generation, size = string.match(text, '^([0-9a-z]+):(%d+)$')
  return generation ~= nil and #generation <= 32 and is_positive(size)
end

local function is_hash(text)
  return #text == 64 and not string.find(text, '%X')
end

local function invalid(name)
  return redis.error_reply('INVALID ' .. name)
end

-- Snapshots --------------------------------------------------------------------------------------------------

-- No caller knows all generations of a session, so their keys are made here; they share the hash tag of `head`.
local function snapshot_key(keys, generation)
  return (string.gsub(keys[1], 'head$', 'snap:' .. generation))
end

local function key_of(keys, snapshot)
  return snapshot_key(keys, string.match(snapshot, '^%w+'))
end

local function remove_snapshot(keys, snapshot)
  if is_snapshot(snapshot or '') then redis.call('UNLINK', key_of(keys, snapshot)) end
end

local function own_snapshot(keys, snapshot)
  if not is_snapshot(snapshot) then return end
  redis.call('PERSIST', key_of(keys, snapshot))
  redis.call('HDEL', keys[6], (string.match(snapshot, '^%w+')))
end

local function is_pending(keys, snapshot)
  return redis.call('PTTL', key_of(keys, snapshot)) >= 0
end

-- Whether a snapshot is there whole, and nothing points to it yet.
local function is_free(keys, snapshot)
  if not is_pending(keys, snapshot) then return false end
  local key, bytes = key_of(keys, snapshot), 0
  for number = 0, redis.call('HLEN', key) - 1 do
    bytes = bytes + redis.call('HSTRLEN', key, number)
  end
  return bytes == tonumber(string.match(snapshot, '%d+$'))
end

-- A call that brings a snapshot: when it is over and nothing points to that, it goes at once.
local function bringing(place, callback)
  return function(keys, args)
    local reply = callback(keys, args)
    local snapshot = tostring(args[place])
    if is_snapshot(snapshot) and is_pending(keys, snapshot) then
      remove_snapshot(keys, snapshot)
      redis.call('HDEL', keys[6], (string.match(snapshot, '^%w+')))
    end
    return reply
  end
end

-- Sessions ---------------------------------------------------------------------------------------------------

local function bury(keys, reason, tombstone_ms)
  local found = redis.call('HMGET', keys[1], 'created_at', 'name', 'base_snapshot', 'previous_snapshot')
  remove_snapshot(keys, found[3])
  remove_snapshot(keys, found[4])
  for _, entry in ipairs(redis.call('HVALS', keys[5])) do
    remove_snapshot(keys, string.match(entry, '^%d+|%d+|([^|]+)|'))
  end
  local pending = redis.call('HGETALL', keys[6])
  for place = 1, #pending, 2 do redis.call('UNLINK', snapshot_key(keys, pending[place])) end
  redis.call('UNLINK', keys[1], keys[2], keys[3], keys[5], keys[6])
  local tomb = reason .. '|' .. (found[1] or '0') .. '|' .. (found[2] or '')
  redis.call('SET', keys[4], tomb, 'PX', tombstone_ms)
end

local function gone(keys)
  local tomb = redis.call('GET', keys[4])
  if not tomb then
    return { 'NOT_FOUND' }
  end
  local reason, created, name = string.match(tomb, '^([a-z_]+)|(%d+)|(.*)$')
  return { 'GONE', reason, created, name }
end

-- One chunk, with an expiry for all of them. What something points to stays as it is, also under a late re-send.
local function put_chunk(keys, args)
  local generation, number, chunk, snapshot_ms = unpack(args)
  if #args ~= 4 then return invalid('arguments') end
  if not is_snapshot(generation .. ':1') then return invalid('generation') end
  if not is_count(number) then return invalid('number') end
  if #chunk == 0 then return invalid('chunk') end
  if not is_positive(snapshot_ms) then return invalid('snapshot_ms') end
  if redis.call('EXISTS', keys[4]) == 1 then return gone(keys) end
  local key = snapshot_key(keys, generation)
  if redis.call('PTTL', key) == -1 then return { 'OK' } end
  redis.call('HSET', key, number, chunk)
  redis.call('PEXPIRE', key, snapshot_ms)
  redis.call('HSET', keys[6], generation, '')
  redis.call('PEXPIRE', keys[6], snapshot_ms)
  return { 'OK' }
end

-- The head of a session that is alive now, or nil and the reply that says why it is not. One that cannot be read
-- says when it is to be looked at again: when it expires or, where even that cannot be read, in an hour.
local function living(keys, tombstone_ms)
  local fields = { 'version', 'chain', 'created_at', 'expires_at', 'ttl', 'name', 'log_bytes', 'base_version',
    'base_snapshot', 'previous_version', 'previous_snapshot', 'form' }
  local found = redis.call('HMGET', keys[1], unpack(fields))
  if not found[1] then
    return nil, gone(keys)
  end
  local head = {}
  for place, field in ipairs(fields) do head[field] = found[place] end
  local ends = is_count(head.expires_at) and head.expires_at or whole(now_ms() + AN_HOUR_MS)
  if tonumber(ends) <= now_ms() then
    bury(keys, 'session_expired', tombstone_ms)
    return nil, gone(keys)
  end
  for _, field in ipairs(fields) do
    if not head[field] then return nil, { 'FORM', ends } end
  end
  for _, field in ipairs({ 'version', 'created_at', 'expires_at', 'ttl', 'log_bytes', 'base_version' }) do
    if not is_count(head[field]) then return nil, { 'FORM', ends } end
  end
  if head.form ~= FORM then return nil, { 'FORM', ends } end
  return head, nil
end

-- A new session that vanishes by itself unless `confirm` follows. The same call again changes nothing.
local function create(keys, args)
  local chain, name, info, state, snapshot, ttl, answer, provisional_ms = unpack(args)
  if #args ~= 8 then return invalid('arguments') end
  if #chain ~= 32 then return invalid('chain') end
  if (state == '') == (snapshot == '') then return invalid('state') end
  if snapshot ~= '' and not is_snapshot(snapshot) then return invalid('snapshot') end
  if not is_positive(ttl) then return invalid('ttl') end
  if not is_positive(provisional_ms) then return invalid('provisional_ms') end
  if redis.call('EXISTS', keys[1]) == 0 then
    if snapshot ~= '' and not is_free(keys, snapshot) then return { 'NO_SNAPSHOT' } end
    local now = now_ms()
    redis.call('HSET', keys[1], 'form', FORM, 'version', '0', 'chain', chain, 'name', name, 'info', info,
      'ttl', ttl, 'answer', answer, 'created_at', whole(now), 'expires_at', whole(now + tonumber(ttl)),
      'log_bytes', '0', 'base_version', '0', 'base_state', state, 'base_snapshot', snapshot,
      'previous_version', '', 'previous_state', '', 'previous_snapshot', '')
    redis.call('PEXPIRE', keys[1], provisional_ms)
    -- all end together, so that a head which can be confirmed has its snapshot
    if snapshot ~= '' then
      redis.call('PEXPIRE', key_of(keys, snapshot), provisional_ms)
      redis.call('PEXPIRE', keys[6], provisional_ms)
    end
  end
  local times = redis.call('HMGET', keys[1], 'created_at', 'expires_at')
  return { 'OK', times[1], times[2] }
end

local function confirm(keys, args)
  if not is_positive(args[1]) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, args[1])
  if not head then return otherwise end
  redis.call('PERSIST', keys[1])
  own_snapshot(keys, head.base_snapshot)
  return { 'OK', redis.call('HGET', keys[1], 'answer') }
end

-- Take back a session that was placed and is not permanent, with its snapshot.
local function withdraw(keys, args)
  if #args ~= 0 then return invalid('arguments') end
  if redis.call('PTTL', keys[1]) >= 0 then
    remove_snapshot(keys, redis.call('HGET', keys[1], 'base_snapshot'))
    redis.call('UNLINK', keys[1], keys[6])
  end
  return { 'OK' }
end

local function load(keys, args)
  local tombstone_ms, with_state, known_version, known_chain = unpack(args)
  if #args ~= 4 then return invalid('arguments') end
  if not is_positive(tombstone_ms) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local reply = { 'OK', head.version, head.chain, head.created_at, head.expires_at, head.ttl, head.name,
    redis.call('HGET', keys[1], 'info') or '' }
  local known = head.version == known_version and head.chain == known_chain
  if with_state ~= '1' or known then return reply end
  for _, base in ipairs({ 'base', 'previous' }) do
    if head[base .. '_version'] == '' then break end
    table.insert(reply, head[base .. '_version'])
    table.insert(reply, head[base .. '_snapshot'])
    table.insert(reply, redis.call('HGET', keys[1], base .. '_state') or '')
  end
  return reply
end

-- What is known of an operation: a reply, or nil when it was never applied (or too long ago).
local function known_operation(keys, head, operation, body_hash, operation_age_ms, answers)
  local entry = redis.call('HGET', keys[3], 'o:' .. operation)
  if not entry then return nil end
  local version, time, hash, summary = string.match(entry, '^(%d+)|(%d+)|(%x+)|(.*)$')
  if not version then return { 'FORM', head.expires_at } end
  if tonumber(time) + tonumber(operation_age_ms) <= now_ms() then return nil end
  if hash ~= body_hash then return { 'MISMATCH' } end
  local kept = redis.call('HGET', keys[3], 'a:' .. whole(tonumber(version) % tonumber(answers))) or ''
  local answered, answer = string.match(kept, '^(%d+)|(.*)$')
  local have = answered == version
  return { 'REPLAY', version, have and '1' or '0', have and answer or '', summary, head.version, head.chain,
    head.expires_at }
end

local function recall(keys, args)
  local operation, body_hash, operation_age_ms, answers, tombstone_ms = unpack(args)
  if #args ~= 5 then return invalid('arguments') end
  for place = 3, 5 do
    if not is_positive(args[place]) then return invalid('limits') end
  end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  return known_operation(keys, head, operation, body_hash, operation_age_ms, answers) or { 'UNKNOWN' }
end

local function remember(keys, version, operation, entry, answer, limits)
  local number = tonumber(version)
  local slot = 'r:' .. whole(number % limits.operations)
  local old = redis.call('HGET', keys[3], slot)
  if old then
    -- the same id may have come back after its time, with a newer entry: that one stays
    local about = redis.call('HGET', keys[3], 'o:' .. old)
    if about and tonumber(string.match(about, '^(%d+)|')) <= number - limits.operations then
      redis.call('HDEL', keys[3], 'o:' .. old)
    end
  end
  local kept = #answer <= limits.answer_bytes and (version .. '|' .. answer) or ''
  redis.call('HSET', keys[3], slot, operation, 'o:' .. operation, entry,
    'a:' .. whole(number % limits.answers), kept)
end

-- Entries of the log are { id, { 'operation', operation, 'chain', chain, 'record', record, 'before', chain } },
-- so that whoever reads them can tell that none was changed, left out or taken from elsewhere.
local function version_of(entry)
  return tonumber(string.match(entry[1], '^(%d+)-'))
end

local function record_of(entry)
  return entry[2][6] or ''
end

-- Drop the oldest records, up to version `unneeded`, while there are too many or they are too long together.
-- `bytes` is the length of all; returns the length of what is left. Each record is looked at once in its life,
-- and once more when it is the first that stays.
local function trim(keys, unneeded, bytes, log_records, log_bytes)
  local left = redis.call('XLEN', keys[2])
  local dropped = nil
  while left > 0 and (left > tonumber(log_records) or bytes > tonumber(log_bytes)) do
    local from = dropped and whole(dropped + 1) .. '-0' or '-'
    local oldest = redis.call('XRANGE', keys[2], from, '+', 'COUNT', 1)[1]
    if not oldest or version_of(oldest) > tonumber(unneeded) then break end
    dropped, left, bytes = version_of(oldest), left - 1, bytes - #record_of(oldest)
  end
  if dropped then redis.call('XTRIM', keys[2], 'MINID', '=', whole(dropped + 1) .. '-0') end
  return left > 0 and bytes or 0
end

-- What becomes of a base whose successor is a snapshot, as fields of the head.
local function demoted(keys, head, version, snapshot)
  return { 'base_version', version, 'base_state', '', 'base_snapshot', snapshot,
    'previous_version', head.base_version, 'previous_snapshot', head.base_snapshot,
    'previous_state', redis.call('HGET', keys[1], 'base_state') or '' }
end

local function commit(keys, args)
  local operation, body_hash, if_match, expected_version, expected_chain, new_chain, record, info, state, snapshot,
    ttl, answer, summary, operations, operation_age_ms, answers, answer_bytes, log_records, log_bytes,
    tombstone_ms = unpack(args)
  if #args ~= 20 then return invalid('arguments') end
  if #operation == 0 or #operation > 255 then return invalid('operation') end
  if not is_hash(body_hash) then return invalid('body_hash') end
  if if_match ~= '' and not is_count(if_match) then return invalid('if_match') end
  if not is_count(expected_version) then return invalid('version') end
  if #expected_chain ~= 32 or #new_chain ~= 32 then return invalid('chain') end
  if state ~= '' and snapshot ~= '' then return invalid('state') end
  if snapshot ~= '' and not is_snapshot(snapshot) then return invalid('snapshot') end
  if not is_positive(ttl) then return invalid('ttl') end
  for place = 14, 20 do
    if not is_positive(args[place]) then return invalid('limits') end
  end

  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local known = known_operation(keys, head, operation, body_hash, operation_age_ms, answers)
  if known then return known end
  if if_match ~= '' and tonumber(if_match) ~= tonumber(head.version) then return { 'MOVED', head.version } end
  if expected_version ~= head.version or expected_chain ~= head.chain then
    return { 'STALE', head.version, head.chain }
  end
  local number = tonumber(head.version) + 1
  local inline, in_chunks = state ~= '', snapshot ~= ''
  if not inline and not in_chunks and number - tonumber(head.base_version) > tonumber(log_records) then
    return { 'SNAPSHOT_DUE' }
  end
  if in_chunks and not is_free(keys, snapshot) then return { 'NO_SNAPSHOT' } end

  local now = now_ms()
  local version = whole(number)
  local expires_at = whole(now + tonumber(ttl))
  -- first, because it refuses by itself a record that is there already
  redis.call('XADD', keys[2], version .. '-0', 'operation', operation, 'chain', new_chain, 'record', record,
    'before', expected_chain)
  remember(keys, version, operation, version .. '|' .. whole(now) .. '|' .. body_hash .. '|' .. summary, answer,
    { operations = tonumber(operations), answers = tonumber(answers), answer_bytes = tonumber(answer_bytes) })
  local base, oldest = {}, head.previous_version ~= '' and head.previous_version or head.base_version
  if inline then
    base, oldest = { 'base_version', version, 'base_state', state }, version
    if head.base_snapshot ~= '' or head.previous_version ~= '' then
      for _, field in ipairs({ 'base_snapshot', 'previous_version', 'previous_state', 'previous_snapshot' }) do
        table.insert(base, field)
        table.insert(base, '')
      end
    end
  elseif in_chunks then
    own_snapshot(keys, snapshot)
    base, oldest = demoted(keys, head, version, snapshot), head.base_version
  end
  local bytes = trim(keys, oldest, tonumber(head.log_bytes) + #record, log_records, log_bytes)
  for _, value in ipairs({ 'info', info, 'ttl', ttl, 'expires_at', expires_at, 'log_bytes', whole(bytes),
    'chain', new_chain, 'version', version }) do
    table.insert(base, value)
  end
  redis.call('HSET', keys[1], unpack(base))
  if inline then remove_snapshot(keys, head.base_snapshot) end
  if inline or in_chunks then remove_snapshot(keys, head.previous_snapshot) end
  local sooner = tonumber(expires_at) < tonumber(head.expires_at)
  return { 'OK', version, expires_at, sooner and '1' or '0' }
end

-- At most `limit` records, and no more once they are `bytes` long, as the first value then says: no reply holds
-- up others for long. Then the head's version and chain, and version, operation, record and both chains of each.
local function read_log(keys, args)
  local after, limit, bytes, tombstone_ms = unpack(args)
  if #args ~= 4 then return invalid('arguments') end
  if not is_count(after) then return invalid('after') end
  for place = 2, 4 do
    if not is_positive(args[place]) then return invalid('limits') end
  end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local reply, length, last = { 'OK', '0', head.version, head.chain }, 0, tonumber(after)
  for _ = 1, tonumber(limit) do
    local entry = redis.call('XRANGE', keys[2], whole(last + 1) .. '-0', '+', 'COUNT', 1)[1]
    if not entry then break end
    last = version_of(entry)
    table.insert(reply, whole(last))
    table.insert(reply, entry[2][2])
    table.insert(reply, record_of(entry))
    table.insert(reply, entry[2][8] or '')
    table.insert(reply, entry[2][4] or '')
    length = length + #record_of(entry)
    if length >= tonumber(bytes) then
      reply[2] = '1'
      break
    end
  end
  return reply
end

-- Make the snapshot of a past or present version the base, if that version is in this history, after the base.
local function keep(keys, args)
  local version, chain, snapshot, log_records, log_bytes, tombstone_ms = unpack(args)
  if #args ~= 6 then return invalid('arguments') end
  if not is_count(version) then return invalid('version') end
  if #chain ~= 32 then return invalid('chain') end
  if not is_snapshot(snapshot) then return invalid('snapshot') end
  for place = 4, 6 do
    if not is_positive(args[place]) then return invalid('limits') end
  end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  if head.base_version == version and head.base_snapshot == snapshot then return { 'OK' } end
  if tonumber(version) <= tonumber(head.base_version) then return { 'OTHER_HISTORY' } end
  local there = head.version == version and head.chain
  if not there then
    local entry = redis.call('XRANGE', keys[2], version .. '-0', version .. '-0')[1]
    there = entry and entry[2][4]
  end
  if there ~= chain then return { 'OTHER_HISTORY' } end
  if not is_free(keys, snapshot) then return { 'NO_SNAPSHOT' } end

  own_snapshot(keys, snapshot)
  local base = demoted(keys, head, version, snapshot)
  table.insert(base, 'log_bytes')
  table.insert(base, whole(trim(keys, head.base_version, tonumber(head.log_bytes), log_records, log_bytes)))
  redis.call('HSET', keys[1], unpack(base))
  remove_snapshot(keys, head.previous_snapshot)
  return { 'OK' }
end

local function name_snapshot(keys, args)
  local name, version, chain, info, snapshot, named_snapshots, tombstone_ms = unpack(args)
  if #args ~= 7 then return invalid('arguments') end
  if #name == 0 or #name > 255 then return invalid('name') end
  if not is_count(version) then return invalid('version') end
  if #chain ~= 32 then return invalid('chain') end
  if not is_snapshot(snapshot) then return invalid('snapshot') end
  for place = 6, 7 do
    if not is_positive(args[place]) then return invalid('limits') end
  end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local entry = redis.call('HGET', keys[5], name)
  local of_version = entry and string.match(entry, '^%d+') == version
  local is_same = of_version and string.match(entry, '^%d+|%d+|([^|]+)|') == snapshot
  if not is_same and (version ~= head.version or chain ~= head.chain) then
    return { 'STALE', head.version, head.chain }
  end
  if entry then
    return of_version and { 'OK', entry } or { 'EXISTS' }
  end
  local count = redis.call('HLEN', keys[5])
  if count >= tonumber(named_snapshots) then return { 'FULL', whole(count + 1) } end
  if not is_free(keys, snapshot) then return { 'NO_SNAPSHOT' } end

  own_snapshot(keys, snapshot)
  entry = version .. '|' .. whole(now_ms()) .. '|' .. snapshot .. '|' .. info
  redis.call('HSET', keys[5], name, entry)
  return { 'OK', entry }
end

local function named(keys, args)
  if not is_positive(args[1]) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, args[1])
  if not head then return otherwise end
  local reply = redis.call('HGETALL', keys[5])
  table.insert(reply, 1, 'OK')
  return reply
end

local function drop(keys, args)
  local name, tombstone_ms = unpack(args)
  if #args ~= 2 then return invalid('arguments') end
  if not is_positive(tombstone_ms) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local entry = redis.call('HGET', keys[5], name)
  if entry then
    redis.call('HDEL', keys[5], name)
    remove_snapshot(keys, string.match(entry, '^%d+|%d+|([^|]+)|'))
  end
  return { 'OK' }
end

local function delete(keys, args)
  if not is_positive(args[1]) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, args[1])
  if head or otherwise[1] == 'FORM' then
    local name = redis.call('HGET', keys[1], 'name') or ''
    bury(keys, 'deleted', args[1])
    return { 'OK', name }
  end
  if otherwise[2] == 'deleted' then return { 'OK', otherwise[4] } end
  return otherwise
end

-- Tenants ----------------------------------------------------------------------------------------------------

-- The session that an operation made: a reply, or nil when there was none (or too long ago).
local function known_creation(keys, operation, body_hash, operation_age_ms)
  local entry = redis.call('HGET', keys[4], 'o:' .. operation)
  if not entry then return nil end
  local time, hash, made = string.match(entry, '^%d+|(%d+)|(%x+)|(%w+)$')
  if tonumber(time) + tonumber(operation_age_ms) <= now_ms() then return nil end
  if hash ~= body_hash then return { 'MISMATCH' } end
  return { 'REPLAY', made }
end

local function claim(keys, args)
  local operation, body_hash, id, name, created_at, expires_at, operations, operation_age_ms = unpack(args)
  if #args ~= 8 then return invalid('arguments') end
  if #operation == 0 or #operation > 255 then return invalid('operation') end
  if not is_hash(body_hash) then return invalid('body_hash') end
  if #id == 0 or string.find(id, '%W') then return invalid('id') end
  for place = 5, 8 do
    if not is_positive(args[place]) then return invalid('limits') end
  end
  local known = known_creation(keys, operation, body_hash, operation_age_ms)
  if known then return known[2] == id and { 'OK' } or known end
  local owner = name ~= '' and redis.call('HGET', keys[1], name)
  if owner and owner ~= id then return { 'TAKEN', owner } end

  local number = redis.call('HINCRBY', keys[4], 'n', 1)
  local slot = 'r:' .. whole(number % tonumber(operations))
  local old = redis.call('HGET', keys[4], slot)
  if old then
    local about = redis.call('HGET', keys[4], 'o:' .. old)
    if about and tonumber(string.match(about, '^(%d+)|')) <= number - tonumber(operations) then
      redis.call('HDEL', keys[4], 'o:' .. old)
    end
  end
  redis.call('HSET', keys[4], slot, operation,
    'o:' .. operation, whole(number) .. '|' .. whole(now_ms()) .. '|' .. body_hash .. '|' .. id)
  if name ~= '' then redis.call('HSET', keys[1], name, id) end
  redis.call('ZADD', keys[2], expires_at, id)
  redis.call('ZADD', keys[3], created_at, id)
  return { 'OK' }
end

local function recall_creation(keys, args)
  local operation, body_hash, operation_age_ms = unpack(args)
  if #args ~= 3 then return invalid('arguments') end
  if not is_positive(operation_age_ms) then return invalid('limits') end
  return known_creation(keys, operation, body_hash, operation_age_ms) or { 'UNKNOWN' }
end

-- Forget what points to a session that is not there; each only where it still points to that one.
local function release(keys, args)
  local id, name, operation = unpack(args)
  if #args ~= 3 then return invalid('arguments') end
  redis.call('ZREM', keys[2], id)
  redis.call('ZREM', keys[3], id)
  if name ~= '' and redis.call('HGET', keys[1], name) == id then redis.call('HDEL', keys[1], name) end
  local entry = operation ~= '' and redis.call('HGET', keys[4], 'o:' .. operation)
  if entry and string.match(entry, '|(%w+)$') == id then redis.call('HDEL', keys[4], 'o:' .. operation) end
  return { 'OK' }
end

local function reindex(keys, args)
  if #args ~= 2 or not is_count(args[2]) then return invalid('arguments') end
  redis.call('ZADD', keys[2], 'XX', args[2], args[1])
  return { 'OK' }
end

local function due(keys, args)
  if not is_positive(args[1]) then return invalid('limit') end
  local ids = redis.call('ZRANGE', keys[2], '-inf', whole(now_ms()), 'BYSCORE', 'LIMIT', 0, args[1])
  table.insert(ids, 1, 'OK')
  return ids
end

-- Ids after (created_at, id), in the order of creation, as id, created_at, id, created_at, ...
local function page(keys, args)
  if #args ~= 3 or not is_count(args[1]) or not is_positive(args[3]) then return invalid('arguments') end
  local created_at, id, limit = args[1], args[2], tonumber(args[3])
  local reply = { 'OK' }
  local start = redis.call('ZCOUNT', keys[3], '-inf', '(' .. created_at)
  while #reply < 1 + 2 * limit do
    local batch = redis.call('ZRANGE', keys[3], start, start + limit - 1, 'WITHSCORES')
    if #batch == 0 then break end
    for at = 1, #batch, 2 do
      local passed = tonumber(batch[at + 1]) == tonumber(created_at) and batch[at] <= id
      if not passed and #reply < 1 + 2 * limit then
        table.insert(reply, batch[at])
        table.insert(reply, whole(tonumber(batch[at + 1])))
      end
    end
    start = start + limit
  end
  return reply
end

-- A write of no meaning, gone at once: who waits until a replica has it waits for all that was written before.
local function mark(keys, args)
  redis.call('SET', keys[1], '', 'PX', 1)
  return { 'OK' }
end

local function register(name, callback, flags)
  redis.register_function { function_name = 'rlstm_v2_' .. name, callback = callback, flags = flags }
end

-- Without allow-oom a full store refuses the call before it starts; with it the call frees memory or only reads.
register('create', create, {})
register('claim', claim, {})
register('commit', bringing(10, commit), {})
register('put_chunk', put_chunk, {})
register('name_snapshot', bringing(5, name_snapshot), {})
register('keep', bringing(3, keep), { 'allow-oom' })
register('named', named, { 'allow-oom' })
register('drop', drop, { 'allow-oom' })
register('mark', mark, { 'allow-oom' })
register('confirm', confirm, { 'allow-oom' })
register('withdraw', withdraw, { 'allow-oom' })
register('load', load, { 'allow-oom' })
register('recall', recall, { 'allow-oom' })
register('recall_creation', recall_creation, { 'allow-oom' })
register('read_log', read_log, { 'allow-oom' })
register('delete', delete, { 'allow-oom' })
register('release', release, { 'allow-oom' })
register('reindex', reindex, { 'allow-oom' })
register('due', due, { 'no-writes' })
register('page', page, { 'no-writes' })
