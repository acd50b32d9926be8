-- Remove expired rows in the next few blocks of the table. This never waits: locked rows are left for later.
WITH over AS MATERIALIZED (
    SELECT ctid FROM eventonce_claims
    WHERE ctid >= %(first)s::tid AND ctid < %(end)s::tid
        AND expires <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM eventonce_claims WHERE ctid = ANY (ARRAY(SELECT ctid FROM over)) RETURNING ctid AS place
)
SELECT count(*), (max(place)::text::point)[0]::bigint,
    pg_relation_size('eventonce_claims') / current_setting('block_size')::bigint
FROM removed
