-- Extend the lease on rows. Return those that this relay still has.
UPDATE eventonce_outbox o SET since = c.now, until = c.now + %(lease)s
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) c
WHERE o.id = ANY (%(numbers)s) AND o.token = %(token)s
RETURNING o.id
