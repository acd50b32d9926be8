-- One row per key. There is no index besides the primary key, so that changes of a row stay in its page (HOT);
-- the fillfactor leaves room there for one change of every row, which is what a claim and its commit need.
CREATE TABLE eventonce_claims (
    lease   bigint   NOT NULL,
    done_at bigint   NOT NULL DEFAULT 0,
    until   bigint   NOT NULL DEFAULT 0,
    expires bigint   NOT NULL,
    version bigint,
    trying  bigint,
    tries   integer  NOT NULL,
    took    integer  NOT NULL DEFAULT 0,
    flags   smallint NOT NULL,          -- 1: the claim was one of several; 2: it took over an abandoned one
    key     bytea    NOT NULL,
    token   bytea    NOT NULL,
    memo    bytea,
    error   bytea,                      -- UTF-8, whatever the encoding of the database
    CONSTRAINT eventonce_claims_key PRIMARY KEY (key)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.2
)
