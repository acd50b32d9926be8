-- Add an event in the transaction that is open. A group's rows get their numbers under a lock that lasts to the end of
-- the transaction, so the numbers have the order of the commits.
WITH added AS (
    INSERT INTO eventonce_outbox (grp, identity, event)
    SELECT CAST(:grp AS text), CAST(:identity AS text), CAST(:event AS bytea)
    FROM (
        SELECT CASE WHEN CAST(:ordered AS boolean)
            THEN pg_advisory_xact_lock(hashtextextended(CAST(:grp AS text), 7310593858020254331)) END
        OFFSET 0
    ) AS held
    RETURNING id
)
SELECT CASE WHEN CAST(:notify AS boolean) THEN pg_notify('eventonce_outbox', '') END FROM added
