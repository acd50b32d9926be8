-- What waits to be published, and nothing else: a row goes when its event is out, so the table stays small.
-- No index holds what a relay changes while a row waits, so those changes stay in the row's page (HOT).
CREATE TABLE eventonce_outbox (
    id       bigint  GENERATED ALWAYS AS IDENTITY,
    added    bigint  NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    since    bigint  NOT NULL DEFAULT 0,   -- its group is not to be taken from then
    until    bigint  NOT NULL DEFAULT 0,   -- to then: a relay has it, or it rests after a failure
    failures integer NOT NULL DEFAULT 0,
    token    text,                         -- of the relay that has it
    grp      text    COLLATE "C" NOT NULL, -- '=' and its group, or '-' and its identity where it has none
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

-- What was published, where a relay is told to keep that for a while.
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
