-- Give claims a new lease. Returns the places of those that are still owned, and whether each was changed.
-- This waits for no row, because the heartbeat of many claims must not wait for one that a transaction has locked.
WITH want AS MATERIALIZED (
    SELECT w.*, m.now
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) m,
        unnest(%(keys)s::bytea[], %(tokens)s::bytea[]) WITH ORDINALITY AS w (key, token, place)
), held AS MATERIALIZED (
    SELECT w.place, w.now, w.key, x.got IS TRUE AS got
    FROM want w
    CROSS JOIN LATERAL (
        SELECT FROM eventonce_claims WHERE key = w.key AND token = w.token AND lease > 0 AND expires > w.now OFFSET 0
    ) c
    LEFT JOIN LATERAL (
        SELECT true AS got FROM eventonce_claims WHERE key = w.key AND token = w.token AND lease > 0 AND expires > w.now
        FOR UPDATE SKIP LOCKED
    ) x ON true
), changed AS (
    UPDATE eventonce_claims c
    SET lease = h.now + %(lease)s, expires = greatest(c.expires, h.now + %(lease)s)
    FROM held h
    WHERE c.key = h.key AND c.key = ANY (ARRAY(SELECT key FROM held WHERE got))
)
SELECT place, got FROM held
