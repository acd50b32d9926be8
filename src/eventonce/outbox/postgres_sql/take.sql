-- Take the next rows of some groups under a lease. A group is taken by its first row: the relay that has it has the
-- group.
--
-- SKIP LOCKED alone would break the order: while one relay takes rows 1 and 2 of a group, another would skip these
-- and take row 3, added just now. So only first rows are searched, and the later rows of a group come with the first.
-- Another relay may have taken, released or deleted a first row since this statement started. So the row is checked
-- again when it is locked, as it is then.
WITH RECURSIVE clock AS MATERIALIZED (
    -- A lease that starts later than `soon` was written before the clock was set back, and counts as expired. `soon` is
    -- later than now, because another relay may have started after this one and have committed first.
    -- If a crash loses a lease, no event is lost. So this does not wait for the disk.
    SELECT now, now + 60000 AS soon, set_config('synchronous_commit', 'off', true) FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) c
), walk AS (  -- from group to group by the index, however many rows each has, and only as far as needed
    (
        SELECT grp, id, since, until FROM eventonce_outbox
        WHERE grp > %(after)s ORDER BY grp, id LIMIT 1
    )
    UNION ALL
    SELECT n.* FROM walk w CROSS JOIN LATERAL (
        SELECT grp, id, since, until FROM eventonce_outbox
        WHERE grp > w.grp ORDER BY grp, id LIMIT 1
    ) n
), free AS MATERIALIZED (
    SELECT w.grp, w.id FROM walk w, clock WHERE NOT (w.since <= clock.soon AND clock.now < w.until) LIMIT %(most)s
), held AS MATERIALIZED (
    SELECT h.grp, h.id FROM free f, clock, LATERAL (
        SELECT o.grp, o.id FROM eventonce_outbox o
        WHERE o.id = f.id AND NOT (o.since <= clock.soon AND clock.now < o.until)
        FOR UPDATE SKIP LOCKED
    ) h
), chosen AS MATERIALIZED (  -- first rows first, so that the limit leaves none of them out
    SELECT m.id FROM held h CROSS JOIN LATERAL (
        SELECT d.id, row_number() OVER (ORDER BY d.id) AS place
        FROM (
            SELECT id FROM eventonce_outbox WHERE grp = h.grp AND id >= h.id ORDER BY id LIMIT %(depth)s
        ) d
    ) m
    ORDER BY m.place, m.id LIMIT %(most)s
), taken AS (
    UPDATE eventonce_outbox o SET token = %(token)s, since = clock.now, until = clock.now + %(lease)s
    FROM clock
    WHERE o.id = ANY (ARRAY(SELECT id FROM chosen))
    RETURNING o.id, o.identity, o.grp, o.event, o.failures, o.added
)
SELECT f.count, f.last, clock.now, t.*
FROM clock CROSS JOIN (SELECT count(*), max(grp) AS last FROM free) f LEFT JOIN taken t ON true
ORDER BY t.id
