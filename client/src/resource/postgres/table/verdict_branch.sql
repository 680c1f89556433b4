-- The branch table of a service with a PostgreSQL database: three tables, in the schema that its role creates tables in.
-- BranchTable::open runs this file if they are missing and it may.
--
-- state: 0 prepared, 1 read only, 2 refused, 3 committed, 4 rolled back; 5 while the transaction that came first works.
CREATE TABLE IF NOT EXISTS verdict_branch (
    xid           bytea    NOT NULL CHECK (length(xid) = 16),
    number        bigint   NOT NULL,
    state         smallint NOT NULL,
    payload       bytea    NOT NULL,
    reason        text,
    source_code   text,
    retryable     boolean,
    keep_until_ms bigint   NOT NULL,
    PRIMARY KEY (xid, number)
);
-- Serves recover, and stays as small as what is in doubt.
CREATE INDEX IF NOT EXISTS verdict_branch_in_doubt ON verdict_branch (xid, number) WHERE state = 0;
-- Whom the service believes. Each local transaction locks the table in a mode that only its writers wait for.
CREATE TABLE IF NOT EXISTS verdict_stamp (
    id          integer PRIMARY KEY CHECK (id = 1),
    format      bigint  NOT NULL,
    cluster     bytea,
    incarnation bigint  NOT NULL
);
INSERT INTO verdict_stamp VALUES (1, 1, NULL, 0) ON CONFLICT DO NOTHING;
-- Apart from the stamp, since it moves all the time.
CREATE TABLE IF NOT EXISTS verdict_horizon (
    id         integer PRIMARY KEY CHECK (id = 1),
    horizon_ms bigint  NOT NULL
);
INSERT INTO verdict_horizon VALUES (1, 0) ON CONFLICT DO NOTHING;
