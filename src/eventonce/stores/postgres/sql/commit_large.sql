-- Mark claims done that are running. Where these are not all of them, commit.sql has to look at what is left.
-- For tables so large that each key is certainly looked up by the index, one after the other: so the rows are taken in
-- the order of their keys without being locked before. OFFSET 0 keeps the number of keys from the planner, which would
-- rather read a whole table for many.
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
