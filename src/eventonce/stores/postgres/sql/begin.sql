-- Lock a claim until the transaction ends. Returns the number of the transaction, its search_path and its role.
-- If this machine loses its power meanwhile, the server notices within a minute, and not in two hours, and unlocks it.
SELECT pg_current_xact_id()::text, current_setting('search_path'), current_setting('role'),
    set_config('tcp_keepalives_idle', '20', true),
    set_config('tcp_keepalives_interval', '10', true), set_config('tcp_keepalives_count', '4', true)
FROM eventonce_claims
WHERE key = %(key)s AND token = %(token)s AND lease > 0
    AND expires > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FOR UPDATE
