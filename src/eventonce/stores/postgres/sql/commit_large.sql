-- Mark running claims done. If not all of the batch are running, commit.sql decides on the others.
-- This is for tables so large that the planner certainly looks up each key by the index, one after the other. So the
-- rows are locked in the order of their keys. OFFSET 0 hides the number of keys from the planner, which would read the
-- whole table for many keys.
UPDATE eventonce_claims c
SET lease = 0, flags = 0, tries = 0, trying = NULL, done_at = g.now, until = g.now + w.keep, took = c.tries,
    version = w.version, memo = w.memo, error = NULL, expires = g.now + w.keep
FROM (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, %(keys)s::bytea[] AS keys,
        %(windows)s::bigint[] AS windows, %(versions)s::bigint[] AS versions, %(tokens)s::bytea[] AS tokens,
        %(memos)s::bytea[] AS memos
    OFFSET 0
) g, unnest(g.keys, g.windows, g.versions, g.tokens, g.memos) AS w (key, keep, version, token, memo)
WHERE c.key = w.key AND c.token = w.token AND c.lease > 0 AND c.expires > g.now
