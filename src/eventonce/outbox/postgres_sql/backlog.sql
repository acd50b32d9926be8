-- How much waits, counted no further than is asked for, and for how long the first of it has.
SELECT (SELECT count(*) FROM (SELECT FROM eventonce_outbox LIMIT %(most)s) AS counted),
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - added FROM eventonce_outbox ORDER BY id LIMIT 1)
