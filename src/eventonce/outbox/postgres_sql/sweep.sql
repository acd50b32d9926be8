-- Delete some of the copies that have expired. It never waits for a lock.
DELETE FROM eventonce_outbox_published WHERE id = ANY (ARRAY(
    SELECT id FROM eventonce_outbox_published
    WHERE published <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - %(keep)s
    ORDER BY published LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
))
