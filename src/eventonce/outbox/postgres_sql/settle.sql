-- Delete rows whose events are published, with a copy if a relay has `keep`, and release the other rows. Rows that
-- another relay has taken over stay as they are. Return how many rows this relay still had.
WITH clock AS MATERIALIZED (
    -- If a crash loses this commit, the events are published again under the same identities.
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now, set_config('synchronous_commit', 'off', true)
), gone AS (
    DELETE FROM eventonce_outbox WHERE id = ANY (%(done)s) AND token = %(token)s
    RETURNING id, added, grp, identity, event
), kept AS (
    INSERT INTO eventonce_outbox_published (id, added, published, grp, identity, event)
    SELECT g.id, g.added, clock.now, g.grp, g.identity, g.event FROM gone g, clock WHERE %(keep)s
), back AS (
    UPDATE eventonce_outbox o
    SET token = NULL, since = clock.now, until = clock.now + b.rest, failures = o.failures + b.blame
    FROM clock, unnest(%(back)s::bigint[], %(rests)s::bigint[], %(blames)s::integer[]) AS b (id, rest, blame)
    WHERE o.id = b.id AND o.token = %(token)s
    RETURNING o.id
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM back)
