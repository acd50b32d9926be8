-- Mark a claim done in the transaction that has locked it since its beginning.
UPDATE eventonce_claims c
SET lease = 0, flags = 0, tries = 0, trying = NULL, done_at = m.now, until = m.now + %(window)s, took = c.tries,
    version = %(version)s, memo = %(memo)s, error = NULL, expires = m.now + %(window)s
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) m
WHERE c.key = %(key)s AND c.token = %(token)s AND c.lease > 0 AND pg_current_xact_id()::text = %(number)s
