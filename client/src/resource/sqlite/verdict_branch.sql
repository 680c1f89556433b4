-- The branch table. state: 0 prepared, 1 read only, 2 refused, 3 committed, 4 rolled back. The partial index serves
-- recover, and stays as small as what is in doubt.
CREATE TABLE IF NOT EXISTS verdict_branch (
    xid           BLOB    NOT NULL,
    number        INTEGER NOT NULL,
    state         INTEGER NOT NULL,
    payload       BLOB    NOT NULL,
    reason        TEXT,
    source_code   TEXT,
    retryable     INTEGER,
    keep_until_ms INTEGER NOT NULL,
    PRIMARY KEY (xid, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS verdict_branch_in_doubt ON verdict_branch (xid, number) WHERE state = 0;
-- Whom the participant believes.
CREATE TABLE IF NOT EXISTS verdict_stamp (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    format      INTEGER NOT NULL,
    cluster     BLOB,
    incarnation INTEGER NOT NULL,
    horizon_ms  INTEGER NOT NULL
);
INSERT INTO verdict_stamp VALUES (1, 1, NULL, 0, 0) ON CONFLICT DO NOTHING;
