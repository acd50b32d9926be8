-- Wait until no transaction locks a claim. Returns whether it is done, or no row if the token does not own it.
SELECT lease = 0 AND done_at > 0 AND tries = 0 FROM eventonce_claims
WHERE key = %(key)s AND token = %(token)s
FOR UPDATE
