-- One row per key. A column that is usually empty or 0 costs a byte or less.
CREATE TABLE eventonce_claims (
    key     BLOB    NOT NULL PRIMARY KEY,
    token   BLOB    NOT NULL,
    lease   INTEGER NOT NULL,
    shared  INTEGER NOT NULL,
    tries   INTEGER NOT NULL,
    trying  INTEGER,
    done_at INTEGER NOT NULL,
    until   INTEGER NOT NULL,
    took    INTEGER NOT NULL,
    version INTEGER,
    memo    BLOB,
    error   TEXT,
    expires INTEGER             -- NULL: the same as until
) WITHOUT ROWID
