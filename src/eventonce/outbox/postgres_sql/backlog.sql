-- The number of events that wait, counted up to a limit, and how long the first of them has waited.
SELECT (SELECT count(*) FROM (SELECT FROM eventonce_outbox LIMIT %(most)s) AS counted),
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - added FROM eventonce_outbox ORDER BY id LIMIT 1)
