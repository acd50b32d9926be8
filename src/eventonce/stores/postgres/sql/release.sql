-- Release claims. Returns the places of those that were owned, or were released before by the same token.
WITH want AS MATERIALIZED (  -- sorted by key
    SELECT w.*, m.now
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) m,
        unnest(%(keys)s::bytea[], %(tokens)s::bytea[], %(windows)s::bigint[], %(errors)s::bytea[])
        WITH ORDINALITY AS w (key, token, keep, error, place)
), held AS MATERIALIZED (
    SELECT w.*, c.running, c.running AND w.error IS NULL AND c.unused AS gone
    FROM want w, LATERAL (
        SELECT lease > 0 AS running, tries = 1 AND done_at = 0 AS unused FROM eventonce_claims
        WHERE key = w.key AND token = w.token AND expires > w.now AND (lease > 0 OR tries > 0)
        FOR UPDATE
    ) c
), removed AS (  -- as if it had never been claimed
    DELETE FROM eventonce_claims WHERE key = ANY (ARRAY(SELECT key FROM held WHERE gone))
), failed AS (
    UPDATE eventonce_claims c
    SET lease = 0, error = h.error, expires = greatest(c.until, h.now + greatest(h.keep, %(failures_for)s))
    FROM held h
    WHERE h.running AND h.error IS NOT NULL
        AND c.key = h.key AND c.key = ANY (ARRAY(SELECT key FROM held WHERE running AND error IS NOT NULL))
), unused AS (  -- without a token, no late call of the old owner can change the record
    UPDATE eventonce_claims c
    SET token = '', lease = 0, tries = c.tries - 1,
        trying = CASE WHEN c.tries > 1 THEN c.trying END,
        expires = CASE WHEN c.tries > 1 THEN c.expires ELSE c.until END
    WHERE c.key = ANY (ARRAY(SELECT key FROM held WHERE running AND error IS NULL AND NOT gone))
)
SELECT place FROM held
