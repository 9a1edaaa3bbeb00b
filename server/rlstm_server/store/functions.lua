#!lua name=rlstm_v1

-- One history a session: the only code that changes what is stored, run by Redis or Valkey, one call at a time.
--
-- A function is isolated but not rolled back: arguments are checked before the first write, and the write
-- that makes an operation visible (the version) comes last. Replies are arrays that begin with a word.
-- Keys of a session share a hash tag, keys of a tenant another: no function touches both.
--
--   session: head (hash), log (stream, ids <version>-0), ops (hash), tomb (string with an expiry)
--   tenant:  names (hash), index (by expiry), ids (by creation), creations (hash); hints, repaired when met
--
-- Both `ops` and `creations` are a window: `o:<operation>` says what is known, `r:<n mod size>` which operation
-- to forget when n comes round again; `a:<n mod size>` are the newest whole answers.

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

local function invalid(name)
  return redis.error_reply('INVALID ' .. name)
end

-- Sessions ---------------------------------------------------------------------------------------------------

local function bury(keys, reason, created, name, tombstone_ms)
  redis.call('UNLINK', keys[1], keys[2], keys[3])
  redis.call('SET', keys[4], reason .. '|' .. created .. '|' .. name, 'PX', tombstone_ms)
end

local function gone(keys)
  local tomb = redis.call('GET', keys[4])
  if not tomb then
    return { 'NOT_FOUND' }
  end
  local reason, created, name = string.match(tomb, '^([a-z_]+)|(%d+)|(.*)$')
  return { 'GONE', reason, created, name }
end

-- The head of a session that is alive now, or nil and the reply that says why it is not.
local function living(keys, tombstone_ms)
  local found = redis.call('HMGET', keys[1], 'version', 'chain', 'created_at', 'expires_at', 'ttl', 'name')
  if not found[1] then
    return nil, gone(keys)
  end
  local head = {
    version = found[1], chain = found[2], created_at = found[3],
    expires_at = found[4], ttl = found[5], name = found[6],
  }
  if tonumber(head.expires_at) <= now_ms() then
    bury(keys, 'session_expired', head.created_at, head.name, tombstone_ms)
    return nil, gone(keys)
  end
  return head, nil
end

-- A new session that vanishes by itself unless `confirm` follows. The same call again changes nothing.
local function create(keys, args)
  local chain, name, info, state, ttl, answer, provisional_ms = unpack(args)
  if #args ~= 7 then return invalid('arguments') end
  if #chain ~= 32 then return invalid('chain') end
  if #state == 0 then return invalid('state') end
  if not is_count(ttl) or ttl == '0' then return invalid('ttl') end
  if not is_count(provisional_ms) or provisional_ms == '0' then return invalid('provisional_ms') end
  if redis.call('EXISTS', keys[1]) == 0 then
    local now = now_ms()
    redis.call('HSET', keys[1], 'version', '0', 'chain', chain, 'name', name, 'info', info, 'state', state,
      'ttl', ttl, 'answer', answer, 'created_at', whole(now), 'expires_at', whole(now + tonumber(ttl)))
    redis.call('PEXPIRE', keys[1], provisional_ms)
  end
  local times = redis.call('HMGET', keys[1], 'created_at', 'expires_at')
  return { 'OK', times[1], times[2] }
end

local function confirm(keys, args)
  local head, otherwise = living(keys, args[1])
  if not head then return otherwise end
  redis.call('PERSIST', keys[1])
  return { 'OK', redis.call('HGET', keys[1], 'answer') }
end

local function load(keys, args)
  local tombstone_ms, with_state, known_version, known_chain = unpack(args)
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local known = head.version == known_version and head.chain == known_chain
  local wanted = with_state == '1' and not known
  return { 'OK', head.version, head.chain, head.created_at, head.expires_at, head.ttl, head.name,
    redis.call('HGET', keys[1], 'info'), wanted and redis.call('HGET', keys[1], 'state') or '' }
end

-- What is known of an operation: a reply, or nil when it was never applied (or too long ago).
local function known_operation(keys, head, operation, body_hash, operation_age_ms, answers)
  local entry = redis.call('HGET', keys[3], 'o:' .. operation)
  if not entry then return nil end
  local version, time, hash, summary = string.match(entry, '^(%d+)|(%d+)|(%x+)|(.*)$')
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

local function commit(keys, args)
  local operation, body_hash, if_match, expected_version, expected_chain, new_chain, record, info, state, ttl,
    answer, summary, operations, operation_age_ms, answers, answer_bytes, log_records, tombstone_ms = unpack(args)
  if #args ~= 18 then return invalid('arguments') end
  if #operation == 0 or #operation > 255 then return invalid('operation') end
  if #body_hash ~= 64 or string.find(body_hash, '%X') then return invalid('body_hash') end
  if if_match ~= '' and not is_count(if_match) then return invalid('if_match') end
  if not is_count(expected_version) then return invalid('version') end
  if #expected_chain ~= 32 or #new_chain ~= 32 then return invalid('chain') end
  if #state == 0 then return invalid('state') end
  if not is_count(ttl) or ttl == '0' then return invalid('ttl') end
  for position = 13, 18 do
    if not is_count(args[position]) or args[position] == '0' then return invalid('limits') end
  end

  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local known = known_operation(keys, head, operation, body_hash, operation_age_ms, answers)
  if known then return known end
  if if_match ~= '' and tonumber(if_match) ~= tonumber(head.version) then return { 'MOVED', head.version } end
  if expected_version ~= head.version or expected_chain ~= head.chain then
    return { 'STALE', head.version, head.chain }
  end

  local now = now_ms()
  local version = whole(tonumber(head.version) + 1)
  local expires_at = whole(now + tonumber(ttl))
  -- first, because it refuses by itself a record that is there already
  redis.call('XADD', keys[2], 'MAXLEN', '=', log_records, version .. '-0', 'operation', operation, 'record', record)
  remember(keys, version, operation, version .. '|' .. whole(now) .. '|' .. body_hash .. '|' .. summary, answer,
    { operations = tonumber(operations), answers = tonumber(answers), answer_bytes = tonumber(answer_bytes) })
  redis.call('HSET', keys[1], 'info', info, 'state', state, 'ttl', ttl, 'expires_at', expires_at,
    'chain', new_chain, 'version', version)
  local sooner = tonumber(expires_at) < tonumber(head.expires_at)
  return { 'OK', version, expires_at, sooner and '1' or '0' }
end

local function read_log(keys, args)
  local after, limit, tombstone_ms = unpack(args)
  local head, otherwise = living(keys, tombstone_ms)
  if not head then return otherwise end
  local reply = { 'OK' }
  for _, entry in ipairs(redis.call('XRANGE', keys[2], whole(tonumber(after) + 1) .. '-0', '+', 'COUNT', limit)) do
    table.insert(reply, string.match(entry[1], '^(%d+)-'))
    table.insert(reply, entry[2][2])
    table.insert(reply, entry[2][4])
  end
  return reply
end

local function delete(keys, args)
  local head, otherwise = living(keys, args[1])
  if head then
    bury(keys, 'deleted', head.created_at, head.name, args[1])
    return { 'OK', head.name }
  end
  if otherwise[2] == 'deleted' then return { 'OK', otherwise[4] } end
  return otherwise
end

-- Tenants ----------------------------------------------------------------------------------------------------

local function claim(keys, args)
  local operation, body_hash, id, name, created_at, expires_at, operations, operation_age_ms = unpack(args)
  if #args ~= 8 then return invalid('arguments') end
  local now = now_ms()
  local entry = redis.call('HGET', keys[4], 'o:' .. operation)
  local number, time, hash, made
  if entry then
    number, time, hash, made = string.match(entry, '^(%d+)|(%d+)|(%x+)|(%w+)$')
    if tonumber(time) + tonumber(operation_age_ms) <= now then made = nil end
  end
  if made and hash ~= body_hash then return { 'MISMATCH' } end
  if made and made ~= id then return { 'REPLAY', made } end
  if made then return { 'OK' } end
  local owner = name ~= '' and redis.call('HGET', keys[1], name)
  if owner and owner ~= id then return { 'TAKEN', owner } end

  number = redis.call('HINCRBY', keys[4], 'n', 1)
  local slot = 'r:' .. whole(number % tonumber(operations))
  local old = redis.call('HGET', keys[4], slot)
  if old then
    local about = redis.call('HGET', keys[4], 'o:' .. old)
    if about and tonumber(string.match(about, '^(%d+)|')) <= number - tonumber(operations) then
      redis.call('HDEL', keys[4], 'o:' .. old)
    end
  end
  redis.call('HSET', keys[4], slot, operation,
    'o:' .. operation, whole(number) .. '|' .. whole(now) .. '|' .. body_hash .. '|' .. id)
  if name ~= '' then redis.call('HSET', keys[1], name, id) end
  redis.call('ZADD', keys[2], expires_at, id)
  redis.call('ZADD', keys[3], created_at, id)
  return { 'OK' }
end

-- Forget what points to a session that is not there; each only where it still points to that one.
local function release(keys, args)
  local id, name, operation = unpack(args)
  redis.call('ZREM', keys[2], id)
  redis.call('ZREM', keys[3], id)
  if name ~= '' and redis.call('HGET', keys[1], name) == id then redis.call('HDEL', keys[1], name) end
  local entry = operation ~= '' and redis.call('HGET', keys[4], 'o:' .. operation)
  if entry and string.match(entry, '|(%w+)$') == id then redis.call('HDEL', keys[4], 'o:' .. operation) end
  return { 'OK' }
end

local function reindex(keys, args)
  redis.call('ZADD', keys[2], 'XX', args[2], args[1])
  return { 'OK' }
end

local function due(keys, args)
  local ids = redis.call('ZRANGE', keys[2], '-inf', whole(now_ms()), 'BYSCORE', 'LIMIT', 0, args[1])
  table.insert(ids, 1, 'OK')
  return ids
end

-- Ids after (created_at, id), in the order of creation, as id, created_at, id, created_at, ...
local function page(keys, args)
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

local function register(name, callback, flags)
  redis.register_function { function_name = 'rlstm_v1_' .. name, callback = callback, flags = flags }
end

-- Without allow-oom a full store refuses the call before it starts; with it the call frees memory or only reads.
register('create', create, {})
register('claim', claim, {})
register('commit', commit, {})
register('confirm', confirm, { 'allow-oom' })
register('load', load, { 'allow-oom' })
register('recall', recall, { 'allow-oom' })
register('read_log', read_log, { 'allow-oom' })
register('delete', delete, { 'allow-oom' })
register('release', release, { 'allow-oom' })
register('reindex', reindex, { 'allow-oom' })
register('due', due, { 'no-writes' })
register('page', page, { 'no-writes' })
