-- The events that wait to be published. A row is deleted when its event is published, so the table stays small.
-- No index has a column that a relay changes while a row waits, so these updates stay in the row's page (HOT).
CREATE TABLE eventonce_outbox (
    id       bigint  GENERATED ALWAYS AS IDENTITY,
    added    bigint  NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    since    bigint  NOT NULL DEFAULT 0,   -- its group cannot be taken between this time
    until    bigint  NOT NULL DEFAULT 0,   -- and this: a relay has it, or it rests after a failure
    failures integer NOT NULL DEFAULT 0,
    token    text,                         -- of the relay that has it
    grp      text    COLLATE "C" NOT NULL, -- '=' and its group, or '-' and its identity if it has no group
    identity text    NOT NULL,
    event    bytea   NOT NULL,             -- JSON in UTF-8, whatever the encoding of the database
    CONSTRAINT eventonce_outbox_id PRIMARY KEY (id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_analyze_threshold = 2000
);
CREATE INDEX eventonce_outbox_groups ON eventonce_outbox (grp, id);

-- Copies of published events, for relays with `keep`.
CREATE TABLE eventonce_outbox_published (
    id        bigint NOT NULL,
    added     bigint NOT NULL,
    published bigint NOT NULL,
    grp       text   COLLATE "C" NOT NULL,
    identity  text   NOT NULL,
    event     bytea  NOT NULL,
    CONSTRAINT eventonce_outbox_published_id PRIMARY KEY (id)
);
CREATE INDEX eventonce_outbox_published_at ON eventonce_outbox_published (published);
