-- Mark claims done. Returns the places of those that are done, now or by an earlier commit with the same token.
WITH want AS MATERIALIZED (  -- sorted by key
    SELECT w.*, m.now
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) m,
        unnest(%(keys)s::bytea[], %(tokens)s::bytea[], %(windows)s::bigint[], %(versions)s::bigint[], %(memos)s::bytea[])
        WITH ORDINALITY AS w (key, token, keep, version, memo, place)
), held AS MATERIALIZED (
    SELECT w.*, c.running
    FROM want w, LATERAL (
        SELECT lease > 0 AS running FROM eventonce_claims
        WHERE key = w.key AND token = w.token AND expires > w.now AND (lease > 0 OR done_at > 0 AND tries = 0)
        FOR UPDATE
    ) c
), changed AS (
    UPDATE eventonce_claims c
    SET lease = 0, flags = 0, tries = 0, trying = NULL, done_at = h.now, until = h.now + h.keep, took = c.tries,
        version = h.version, memo = h.memo, error = NULL, expires = h.now + h.keep
    FROM held h
    WHERE h.running AND c.key = h.key AND c.key = ANY (ARRAY(SELECT key FROM held WHERE running))
)
SELECT place FROM held
