-- Return the next rows of some groups. The transaction has the write lock, so no other relay can interfere.
WITH RECURSIVE walk (grp) AS (
    SELECT (SELECT min(grp) FROM eventonce_outbox WHERE grp > :after)
    UNION ALL
    SELECT (SELECT min(grp) FROM eventonce_outbox WHERE grp > walk.grp) FROM walk WHERE walk.grp IS NOT NULL
), free AS MATERIALIZED (
    SELECT o.grp, o.id FROM walk
    CROSS JOIN eventonce_outbox o ON o.id = (SELECT min(id) FROM eventonce_outbox WHERE grp = walk.grp)
    WHERE NOT (o.since <= :now + 60000 AND :now < o.until)  -- a lease that starts later is from before the clock was set back
    LIMIT :most
), chosen AS (
    SELECT o.id, row_number() OVER (PARTITION BY o.grp ORDER BY o.id) AS place
    FROM free f JOIN eventonce_outbox o ON o.grp = f.grp AND o.id IN (
        SELECT id FROM eventonce_outbox WHERE grp = f.grp ORDER BY id LIMIT :depth
    )
    ORDER BY place, o.id LIMIT :most
)
SELECT f.count, f.last, o.id, o.identity, o.grp, o.event, o.failures, o.added
FROM (SELECT count(*) AS count, max(grp) AS last FROM free) f
LEFT JOIN eventonce_outbox o ON o.id IN (SELECT id FROM chosen)
ORDER BY o.id
