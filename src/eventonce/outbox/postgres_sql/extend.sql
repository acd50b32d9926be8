-- Hold on to what was taken; answers with what is still held.
UPDATE eventonce_outbox o SET since = c.now, until = c.now + %(lease)s
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) c
WHERE o.id = ANY (%(numbers)s) AND o.token = %(token)s
RETURNING o.id
