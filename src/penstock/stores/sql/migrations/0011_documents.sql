-- Documents and logs: what HTTP servers and dashboards keep for all nodes.

-- version: higher after each change of a document of this kind; a document's revision is the version of its last change.
CREATE TABLE penstock_document_kind (
    namespace TEXT NOT NULL,
    kind      TEXT NOT NULL,
    version   INTEGER NOT NULL,
    PRIMARY KEY (namespace, kind)
) STRICT, WITHOUT ROWID;

-- name: as UTF-8 bytes, which are compared byte by byte.
CREATE TABLE penstock_document (
    namespace  TEXT NOT NULL,
    kind       TEXT NOT NULL,
    name       BLOB NOT NULL,
    revision   INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER,
    body       BLOB NOT NULL,
    PRIMARY KEY (namespace, kind, name)
) STRICT;

-- taken: in the window that ends at `ends`.
CREATE TABLE penstock_quota (
    namespace TEXT NOT NULL,
    name      BLOB NOT NULL,
    taken     INTEGER NOT NULL,
    ends      INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX penstock_quota_ends ON penstock_quota (ends);

CREATE TABLE penstock_log (
    namespace TEXT NOT NULL,
    log       TEXT NOT NULL,
    number    INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    body      BLOB NOT NULL,
    PRIMARY KEY (namespace, log, number)
) STRICT;
