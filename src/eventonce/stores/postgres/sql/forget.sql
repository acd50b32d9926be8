-- Forget keys. Returns those that existed.
WITH known AS MATERIALIZED (
    SELECT c.key, c.expires
    FROM unnest(%(keys)s::bytea[]) AS w (key),  -- sorted
        LATERAL (SELECT key, expires FROM eventonce_claims WHERE key = w.key FOR UPDATE) c
), removed AS (
    DELETE FROM eventonce_claims WHERE key = ANY (ARRAY(SELECT key FROM known))
)
SELECT key FROM known WHERE expires > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
