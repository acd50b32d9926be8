-- The events that wait to be published. The columns are explained in the same file for PostgreSQL.
CREATE TABLE eventonce_outbox (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    added    INTEGER NOT NULL,
    since    INTEGER NOT NULL DEFAULT 0,
    until    INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    token    TEXT,
    grp      TEXT    NOT NULL,
    identity TEXT    NOT NULL,
    event    BLOB    NOT NULL
);
CREATE INDEX eventonce_outbox_groups ON eventonce_outbox (grp, id);
CREATE TABLE eventonce_outbox_published (
    id        INTEGER PRIMARY KEY,
    added     INTEGER NOT NULL,
    published INTEGER NOT NULL,
    grp       TEXT    NOT NULL,
    identity  TEXT    NOT NULL,
    event     BLOB    NOT NULL
);
CREATE INDEX eventonce_outbox_published_at ON eventonce_outbox_published (published);
