-- Answer a batch of claims. A row is written or locked only if it may be claimed, and no statement waits for a row that
-- another transaction locks, such as a long ctx.tx. New rows are inserted in the order of their keys. Only there one
-- batch may wait for the statement of another to end, so no two can wait for each other.
WITH m AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
), there AS MATERIALIZED (
    SELECT * FROM eventonce_claims WHERE key = ANY (%(keys)s::bytea[])
), new AS (  -- the keys are sorted; NOT IN keeps their order, which a join would not
    INSERT INTO eventonce_claims (key, token, lease, flags, tries, trying, expires)
    SELECT key, %(token)s, (SELECT now FROM m) + %(lease)s, (%(flags)s::bigint[])[place] & 1, 1,
        (%(versions)s::bigint[])[place],
        (SELECT now FROM m) + %(lease)s + greatest((%(windows)s::bigint[])[place], %(failures_for)s)
    FROM unnest(%(keys)s::bytea[]) WITH ORDINALITY AS w (key, place)
    WHERE key NOT IN (SELECT key FROM there)
    ON CONFLICT (key) DO NOTHING
    RETURNING key
), look AS MATERIALIZED (
    SELECT w.place, m.now, w.key AS wanted, w.keep, w.version AS asked, w.flags AS how, c.*,
        CASE
            WHEN c.key IS NULL THEN 'absent'
            WHEN c.expires <= m.now OR c.lease > 0 AND c.token = %(token)s THEN 'free'
            WHEN c.lease > m.now AND c.lease <= m.now + %(furthest_lease)s THEN 'busy'
            WHEN c.done_at = 0 OR c.until <= m.now THEN 'free'
            WHEN w.version < c.version THEN 'stale'
            WHEN w.version > c.version THEN 'free'
            ELSE 'done'
        END AS state
    FROM m, unnest(%(keys)s::bytea[], %(windows)s::bigint[], %(versions)s::bigint[], %(flags)s::bigint[])
        WITH ORDINALITY AS w (key, keep, version, flags, place)
    LEFT JOIN there c ON c.key = w.key
    WHERE (SELECT count(*) FROM new) < cardinality(%(keys)s::bytea[])  -- mostly all are new, and this is not begun
        AND w.key NOT IN (SELECT key FROM new)
), free AS MATERIALIZED (
    SELECT l.wanted
    FROM look l, LATERAL (SELECT FROM eventonce_claims WHERE key = l.wanted FOR UPDATE SKIP LOCKED) c
    WHERE l.state = 'free'
), taken AS (  -- rows that are still free now that they are locked
    UPDATE eventonce_claims c SET
        (token, lease, flags, tries, trying, done_at, until, took, version, memo, error, expires) = (
            SELECT %(token)s, l.now + %(lease)s,
                CASE WHEN own THEN c.flags & 1 WHEN goes_on AND c.lease > 0 THEN l.how & 1 | 2 ELSE l.how & 1 END,
                t.tries,
                CASE WHEN own OR t.tries > 1 THEN c.trying ELSE l.asked END,
                CASE WHEN live THEN c.done_at ELSE 0 END,
                CASE WHEN live THEN c.until ELSE 0 END,
                CASE WHEN live THEN c.took ELSE 0 END,
                CASE WHEN live THEN c.version END,
                CASE WHEN live THEN c.memo END,
                CASE WHEN own OR goes_on THEN c.error END,
                greatest(
                    CASE WHEN own THEN c.expires WHEN live THEN c.until END,
                    l.now + %(lease)s + greatest(l.keep, %(failures_for)s)
                )
            FROM (SELECT c.expires > l.now AS live) a
            CROSS JOIN LATERAL (
                SELECT live AND c.lease > 0 AND c.token = %(token)s AS own,
                    live AND c.tries > 0 AND (l.asked > c.trying) IS NOT TRUE AS goes_on
            ) b
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN own THEN c.tries
                    WHEN NOT goes_on THEN 1
                    WHEN c.lease > 0 AND c.flags & 1 = 1 THEN c.tries
                    ELSE c.tries + 1
                END AS tries
            ) t
        )
    FROM look l
    WHERE c.key = l.wanted AND c.key = ANY (ARRAY(SELECT wanted FROM free))
        AND (
            c.expires <= l.now
            OR c.lease > 0 AND c.token = %(token)s
            OR (c.lease <= l.now OR c.lease > l.now + %(furthest_lease)s)
                AND (c.done_at = 0 OR c.until <= l.now OR l.asked > c.version)
        )
    RETURNING c.key, c.tries, c.flags, c.error
), slid AS (  -- a duplicate restarts a sliding window, unless another one does so now
    UPDATE eventonce_claims c
    SET until = greatest(c.until, l.now + l.keep), expires = greatest(c.expires, c.until, l.now + l.keep)
    FROM look l
    WHERE l.state = 'done' AND l.how & 2 = 2 AND c.key = l.wanted AND c.done_at > 0
        AND c.key = ANY (ARRAY(
            SELECT l.wanted
            FROM look l, LATERAL (SELECT FROM eventonce_claims WHERE key = l.wanted FOR UPDATE SKIP LOCKED) c
            WHERE l.state = 'done' AND l.how & 2 = 2
        ))
), mark AS MATERIALIZED (  -- a done row may not have reached a synchronous standby yet: this makes the answer wait for it
    SELECT pg_logical_emit_message(true, 'eventonce', '')
    FROM look
    WHERE state IN ('done', 'stale') AND current_setting('synchronous_standby_names') <> ''
    LIMIT 1
)
-- New rows are plain first attempts, and not answered.
SELECT l.place, l.now, CASE WHEN t.key IS NULL THEN l.state ELSE 'won' END, t.tries, t.flags & 2 = 2, t.error,
    l.token, l.lease, l.flags & 1 = 1, l.tries, l.trying, l.done_at, l.until, l.took, l.version, l.memo, l.error,
    l.expires
FROM look l
LEFT JOIN taken t ON t.key = l.wanted
LEFT JOIN mark ON true
