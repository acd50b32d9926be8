-- The settings of the server that matter for durability.
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', current_setting('fsync') = 'off',
    current_setting('synchronous_commit') = 'off', current_setting('full_page_writes') = 'off'
