-- The branch table of a service with a MariaDB or MySQL database: three tables. BranchTable::open runs this file if they
-- are missing and it may.
--
-- state: 0 prepared, 1 read only, 2 refused, 3 committed, 4 rolled back; 5 while the transaction that came first works.
-- The index serves recover.
CREATE TABLE IF NOT EXISTS verdict_branch (
    xid           BINARY(16)      NOT NULL,
    number        INT UNSIGNED    NOT NULL,
    state         TINYINT         NOT NULL,
    payload       BLOB            NOT NULL,
    reason        TEXT            CHARACTER SET utf8mb4,
    source_code   TEXT            CHARACTER SET utf8mb4,
    retryable     BOOLEAN,
    keep_until_ms BIGINT          NOT NULL,
    PRIMARY KEY (xid, number),
    KEY in_doubt (state, xid, number)
) ENGINE = InnoDB;
-- Whom the service believes. Each local transaction locks the row, shared.
CREATE TABLE IF NOT EXISTS verdict_stamp (
    id          INT    PRIMARY KEY CHECK (id = 1),
    format      BIGINT NOT NULL,
    cluster     BINARY(16),
    incarnation BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO verdict_stamp VALUES (1, 1, NULL, 0);
-- Apart from the stamp, since it moves all the time.
CREATE TABLE IF NOT EXISTS verdict_horizon (
    id         INT    PRIMARY KEY CHECK (id = 1),
    horizon_ms BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO verdict_horizon VALUES (1, 0);
