-- Whether a claim is done by this token, once no transaction holds it any more; no row where it is not its own.
SELECT lease = 0 AND done_at > 0 AND tries = 0 FROM eventonce_claims
WHERE key = %(key)s AND token = %(token)s
FOR UPDATE
