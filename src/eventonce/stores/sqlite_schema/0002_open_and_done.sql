-- A key has a row in one of these or in both. What is open is small, and every event writes it twice; what is done is
-- large, its pages are cold, and every event writes one of them once. Its rows are as narrow as they can be: each column
-- costs a byte, and what is empty, 0 or 1 no more than that.
CREATE TABLE eventonce_open (    -- claims that run, and attempts that failed
    key     BLOB    NOT NULL PRIMARY KEY,
    token   BLOB    NOT NULL,
    lease   INTEGER NOT NULL,
    shared  INTEGER NOT NULL,
    tries   INTEGER NOT NULL,
    trying  INTEGER,
    error   TEXT,
    expires INTEGER NOT NULL     -- never before the end of the window of what is done
) WITHOUT ROWID;
CREATE TABLE eventonce_done (
    key     BLOB    NOT NULL PRIMARY KEY,
    token   BLOB    NOT NULL,
    done_at INTEGER NOT NULL,
    window  INTEGER NOT NULL,    -- from done_at on
    took    INTEGER NOT NULL,
    version INTEGER,
    memo    BLOB
) WITHOUT ROWID;
INSERT INTO eventonce_open SELECT key, token, lease, shared, tries, trying, error, coalesce(expires, until)
    FROM eventonce_claims WHERE lease <> 0 OR tries <> 0 OR shared <> 0 OR done_at = 0;
INSERT INTO eventonce_done SELECT key, token, done_at, until - done_at, took, version, memo
    FROM eventonce_claims WHERE done_at <> 0;
DROP TABLE eventonce_claims
