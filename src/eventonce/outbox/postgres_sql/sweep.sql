-- Remove some of what was published longer ago than it is to be kept. Never waits.
DELETE FROM eventonce_outbox_published WHERE id = ANY (ARRAY(
    SELECT id FROM eventonce_outbox_published
    WHERE published <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - %(keep)s
    ORDER BY published LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
))
