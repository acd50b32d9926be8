-- Read the records of keys.
SELECT c.key, c.token, c.lease, c.flags & 1 = 1, c.tries, c.trying, c.done_at, c.until, c.took, c.version, c.memo,
    c.error, c.expires
FROM unnest(%(keys)s::bytea[]) AS w (key), LATERAL (SELECT * FROM eventonce_claims WHERE key = w.key OFFSET 0) c
WHERE c.expires > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
