-- Mark claims done that are running; answers with their places. What is not among them commit.sql has to look at.
-- For tables so large that each key is certainly looked up by the index, one after the other: so the rows are taken in
-- the order of their keys without being locked before. OFFSET 0 keeps the number of keys from the planner, which would
-- rather read a whole table for many.
WITH m AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
)
UPDATE eventonce_claims c
SET lease = 0, flags = 0, tries = 0, trying = NULL, done_at = (SELECT now FROM m), until = (SELECT now FROM m) + w.keep,
    took = c.tries, version = w.version, memo = w.memo, error = NULL, expires = (SELECT now FROM m) + w.keep
FROM (
    SELECT %(keys)s::bytea[] AS keys, %(windows)s::bigint[] AS windows, %(versions)s::bigint[] AS versions,
        %(tokens)s::bytea[] AS tokens, %(memos)s::bytea[] AS memos
    OFFSET 0
) g, unnest(g.keys, g.windows, g.versions, g.tokens, g.memos)
    WITH ORDINALITY AS w (key, keep, version, token, memo, place)
WHERE c.key = w.key AND c.token = w.token AND c.lease > 0 AND c.expires > (SELECT now FROM m)
RETURNING w.place
