#!lua name=rlstm_v3

-- One history a session: the only code that changes what is stored, run by Redis or Valkey, one call at a time.
--
-- A function is isolated but not rolled back: arguments are checked before the first write, and the write
-- that makes an operation visible (the version) comes last. Replies are arrays that begin with a word.
-- Keys of a session share a hash tag, keys of a tenant another: no function touches both.
--
--   session: head (hash), ops (hash), tomb (string with an expiry),
--            named (hash: version|time|chain|info), states (hash: the states of named snapshots)
--   tenant:  names (hash), index (by expiry), ids (by creation), creations (hash); hints, repaired when met or due
--
-- Both `ops` and `creations` are a window: `o:<operation>` says what is known, `r:<n mod size>` which operation
-- to forget when n comes round again. `d:<version>` holds the details of an answer: none is older than the
-- head's `details_from`, and those but the newest are no longer than a limit, all together.
--
-- The name of the library and of each function carries a number. It goes up when a function takes other
-- arguments or does other things, so that replicas of two releases work side by side on one store. `FORM` goes
-- up when what is stored can no longer be read by the release before.

local FORM = '3'
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

local function is_hash(text)
  return #text == 64 and not string.find(text, '%X')
end

local function invalid(name)
  return redis.error_reply('INVALID ' .. name)
end

-- Sessions ---------------------------------------------------------------------------------------------------

local function finish(keys, reason, tombstone_ms)
  local found = redis.call('HMGET', keys[1], 'created_at', 'name')
  redis.call('UNLINK', keys[1], keys[2], keys[4], keys[5])
  local tomb = reason .. '|' .. (found[1] or '0') .. '|' .. (found[2] or '')
  redis.call('SET', keys[3], tomb, 'PX', tombstone_ms)
end

local function gone(keys)
  local tomb = redis.call('GET', keys[3])
  if not tomb then
    return { 'NOT_FOUND' }
  end
  local reason, created, name = string.match(tomb, '^([a-z_]+)|(%d+)|(.*)$')
  return { 'GONE', reason, created, name }
end

-- The head of a session that is alive now, or nil and the reply that says why it is not. One that cannot be read
-- says when it is to be looked at again: when it expires or, where even that cannot be read, in an hour.
local function living(keys, tombstone_ms)
  local fields = { 'version', 'chain', 'created_at', 'expires_at', 'ttl', 'name', 'details_from', 'details_bytes',
    'form' }
  local found = redis.call('HMGET', keys[1], unpack(fields))
  if not found[1] then
    return nil, gone(keys)
  end
  local head = {}
  for place, field in ipairs(fields) do head[field] = found[place] end
  local ends = is_count(head.expires_at) and head.expires_at or whole(now_ms() + AN_HOUR_MS)
  if tonumber(ends) <= now_ms() then
    finish(keys, 'session_expired', tombstone_ms)
    return nil, gone(keys)
  end
  for _, field in ipairs(fields) do
    if not head[field] then return nil, { 'FORM', ends } end
  end
  for _, field in ipairs({ 'version', 'created_at', 'expires_at', 'ttl', 'details_from', 'details_bytes' }) do
    if not is_count(head[field]) then return nil, { 'FORM', ends } end
  end
  if head.form ~= FORM then return nil, { 'FORM', ends } end
  return head, nil
end

-- A new session that vanishes by itself unless `confirm` follows. The same call again changes nothing.
local function create(keys, args)
  local chain, name, info, state, ttl, answer, provisional_ms = unpack(args)
  if #args ~= 7 then return invalid('arguments') end
  if #chain ~= 32 then return invalid('chain') end
  if #state == 0 then return invalid('state') end
  if not is_positive(ttl) then return invalid('ttl') end
  if not is_positive(provisional_ms) then return invalid('provisional_ms') end
  if redis.call('EXISTS', keys[1]) == 0 then
    local now = now_ms()
    redis.call('HSET', keys[1], 'form', FORM, 'version', '0', 'chain', chain, 'name', name, 'info', info,
      'ttl', ttl, 'answer', answer, 'created_at', whole(now), 'expires_at', whole(now + tonumber(ttl)),
      'details_from', '1', 'details_bytes', '0', 'state', state)
    redis.call('PEXPIRE', keys[1], provisional_ms)
  end
  local times = redis.call('HMGET', keys[1], 'created_at', 'expires_at')
  return { 'OK', times[1], times[2] }
end

local function confirm(keys, args)
  if not is_positive(args[1]) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, args[1])
  if not head then return otherwise end
  redis.call('PERSIST', keys[1])
  return { 'OK', redis.call('HGET', keys[1], 'answer') }
end

-- Take back a session that was placed and is not permanent.
local function withdraw(keys, args)
  if #args ~= 0 then return invalid('arguments') end
  if redis.call('PTTL', keys[1]) >= 0 then redis.call('UNLINK', keys[1]) end
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
  if with_state == '1' and not known then
    table.insert(reply, redis.call('HGET', keys[1], 'state') or '')
  end
  return reply
end

-- What is known of an operation: a reply, or nil when it was never applied (or too long ago).
local function known_operation(keys, head, operation, body_hash, operation_age_ms)
  local entry = redis.call('HGET', keys[2], 'o:' .. operation)
  if not entry then return nil end
  local version, time, hash, detailed, summary = string.match(entry, '^(%d+)|(%d+)|(%x+)|([01])|(.*)$')
  if not version then return { 'FORM', head.expires_at } end
  if tonumber(time) + tonumber(operation_age_ms) <= now_ms() then return nil end
  if hash ~= body_hash then return { 'MISMATCH' } end
  local details = redis.call('HGET', keys[2], 'd:' .. version)
  local whole_answer = detailed == '0' or details
  return { 'REPLAY', version, whole_answer and '1' or '0', details or '', summary, head.version, head.chain,
    head.expires_at }
end

local function recall(keys, args)
  local operation, body_hash, operation_age_ms, tombstone_ms = unpack(args)
  if #args ~= 4 then return invalid('arguments') end
  if not is_positive(operation_age_ms) then return invalid('limits') end
  if not is_positive(tombstone_ms) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  return known_operation(keys, head, operation, body_hash, operation_age_ms) or { 'UNKNOWN' }
end

local function remember(keys, version, operation, entry, operations)
  local number = tonumber(version)
  local slot = 'r:' .. whole(number % operations)
  local old = redis.call('HGET', keys[2], slot)
  if old then
    -- the same id may have come back after its time, with a newer entry: that one stays
    local about = redis.call('HGET', keys[2], 'o:' .. old)
    if about and tonumber(string.match(about, '^(%d+)|')) <= number - operations then
      redis.call('HDEL', keys[2], 'o:' .. old)
    end
  end
  redis.call('HSET', keys[2], slot, operation, 'o:' .. operation, entry)
end

-- Drop the oldest details, of versions up to `version`, while they are too long together or belong to operations
-- that are forgotten. Returns the oldest version that is left, and the bytes. Each version is looked at once.
local function trim_details(keys, head, version, operations, details_bytes)
  local from, bytes = tonumber(head.details_from), tonumber(head.details_bytes)
  while from <= version and (bytes > details_bytes or from <= version + 1 - operations) do
    local field = 'd:' .. whole(from)
    local length = redis.call('HSTRLEN', keys[2], field)
    if length > 0 then redis.call('HDEL', keys[2], field) end
    from, bytes = from + 1, bytes - length
  end
  return from, bytes
end

local function commit(keys, args)
  local operation, body_hash, if_match, expected_version, expected_chain, new_chain, info, state, ttl, summary,
    details, operations, operation_age_ms, details_bytes, tombstone_ms = unpack(args)
  if #args ~= 15 then return invalid('arguments') end
  if #operation == 0 or #operation > 255 then return invalid('operation') end
  if not is_hash(body_hash) then return invalid('body_hash') end
  if if_match ~= '' and not is_count(if_match) then return invalid('if_match') end
  if not is_count(expected_version) then return invalid('version') end
  if #expected_chain ~= 32 or #new_chain ~= 32 then return invalid('chain') end
  if #state == 0 then return invalid('state') end
  if not is_positive(ttl) then return invalid('ttl') end
  for place = 12, 15 do
    if not is_positive(args[place]) then return invalid('limits') end
  end

  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local known = known_operation(keys, head, operation, body_hash, operation_age_ms)
  if known then return known end
  if if_match ~= '' and tonumber(if_match) ~= tonumber(head.version) then return { 'MOVED', head.version } end
  if expected_version ~= head.version or expected_chain ~= head.chain then
    return { 'STALE', head.version, head.chain }
  end

  local now = now_ms()
  local version = whole(tonumber(head.version) + 1)
  local expires_at = whole(now + tonumber(ttl))
  local from, bytes = trim_details(keys, head, tonumber(head.version), tonumber(operations), tonumber(details_bytes))
  local detailed = #details > 0
  if detailed then redis.call('HSET', keys[2], 'd:' .. version, details) end
  local entry = { version, whole(now), body_hash, detailed and '1' or '0', summary }
  remember(keys, version, operation, table.concat(entry, '|'), tonumber(operations))
  redis.call('HSET', keys[1], 'state', state, 'info', info, 'ttl', ttl, 'expires_at', expires_at,
    'details_from', whole(from), 'details_bytes', whole(bytes + #details), 'chain', new_chain, 'version', version)
  local sooner = tonumber(expires_at) < tonumber(head.expires_at)
  return { 'OK', version, expires_at, sooner and '1' or '0' }
end

-- Named snapshots: copies of a state -------------------------------------------------------------------------

local function name_snapshot(keys, args)
  local name, version, chain, hex_chain, info, named_snapshots, tombstone_ms = unpack(args)
  if #args ~= 7 then return invalid('arguments') end
  if #name == 0 or #name > 255 then return invalid('name') end
  if not is_count(version) then return invalid('version') end
  if #chain ~= 32 or not is_hash(hex_chain) then return invalid('chain') end
  for place = 6, 7 do
    if not is_positive(args[place]) then return invalid('limits') end
  end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local entry = redis.call('HGET', keys[4], name)
  if entry then
    local named_version, named_chain = string.match(entry, '^(%d+)|%d+|(%x+)|')
    if named_version == version and named_chain == hex_chain then
      return { 'OK', entry, redis.call('HSTRLEN', keys[5], name) }
    end
  end
  if version ~= head.version or chain ~= head.chain then return { 'STALE', head.version, head.chain } end
  if entry then return { 'EXISTS' } end
  local count = redis.call('HLEN', keys[4])
  if count >= tonumber(named_snapshots) then return { 'FULL', whole(count + 1) } end

  entry = version .. '|' .. whole(now_ms()) .. '|' .. hex_chain .. '|' .. info
  redis.call('HSET', keys[5], name, redis.call('HGET', keys[1], 'state'))
  redis.call('HSET', keys[4], name, entry)
  return { 'OK', entry, redis.call('HSTRLEN', keys[5], name) }
end

-- Name, entry and the length of the state, of each in turn.
local function named(keys, args)
  if #args ~= 1 or not is_positive(args[1]) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, args[1])
  if not head then return otherwise end
  local reply, found = { 'OK' }, redis.call('HGETALL', keys[4])
  for place = 1, #found, 2 do
    table.insert(reply, found[place])
    table.insert(reply, found[place + 1])
    table.insert(reply, redis.call('HSTRLEN', keys[5], found[place]))
  end
  return reply
end

local function read_snapshot(keys, args)
  local name, tombstone_ms = unpack(args)
  if #args ~= 2 then return invalid('arguments') end
  if not is_positive(tombstone_ms) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local entry = redis.call('HGET', keys[4], name)
  if not entry then return { 'NO_SNAPSHOT' } end
  return { 'OK', entry, redis.call('HGET', keys[5], name) or '' }
end

local function drop_snapshot(keys, args)
  local name, tombstone_ms = unpack(args)
  if #args ~= 2 then return invalid('arguments') end
  if not is_positive(tombstone_ms) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  redis.call('HDEL', keys[4], name)
  redis.call('HDEL', keys[5], name)
  return { 'OK' }
end

local function delete(keys, args)
  if not is_positive(args[1]) then return invalid('tombstone_ms') end
  local head, otherwise = living(keys, args[1])
  if head or otherwise[1] == 'FORM' then
    local name = redis.call('HGET', keys[1], 'name') or ''
    finish(keys, 'deleted', args[1])
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
  redis.register_function { function_name = 'rlstm_v3_' .. name, callback = callback, flags = flags }
end

-- Without allow-oom a full store refuses the call before it starts; with it the call frees memory or only reads.
register('create', create, {})
register('claim', claim, {})
register('commit', commit, {})
register('name_snapshot', name_snapshot, {})
register('named', named, { 'allow-oom' })
register('read_snapshot', read_snapshot, { 'allow-oom' })
register('drop_snapshot', drop_snapshot, { 'allow-oom' })
register('mark', mark, { 'allow-oom' })
register('confirm', confirm, { 'allow-oom' })
register('withdraw', withdraw, { 'allow-oom' })
register('load', load, { 'allow-oom' })
register('recall', recall, { 'allow-oom' })
register('recall_creation', recall_creation, { 'allow-oom' })
register('delete', delete, { 'allow-oom' })
register('release', release, { 'allow-oom' })
register('reindex', reindex, { 'allow-oom' })
register('due', due, { 'no-writes' })
register('page', page, { 'no-writes' })
