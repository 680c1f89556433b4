-- One row for each branch that was prepared in this database, written within the branch itself: a row that can be read
-- is the evidence that its branch was committed. Rows are swept once they are six hours old; each takes about 100 bytes.
-- connection_id is the session that prepared it: read uncommitted, it says which one to end if that session hangs.
CREATE TABLE IF NOT EXISTS verdict_branches (
    gtrid         BINARY(32)      NOT NULL,
    bqual         VARBINARY(64)   NOT NULL,
    connection_id BIGINT UNSIGNED NOT NULL,
    prepared_at   TIMESTAMP(3)    NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (gtrid, bqual)
) ENGINE = InnoDB
