-- Statistics that workers report, and groups of errors.

-- name: last_report
-- ?1 qid  ?2 source
SELECT number FROM penstock_stats_report WHERE queue = ?1 AND source = ?2

-- name: set_report
-- ?1 qid  ?2 source  ?3 number  ?4 now
INSERT INTO penstock_stats_report (queue, source, number, at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, source) DO UPDATE SET number = ?3, at = ?4

-- name: forget_reports
-- ?1 qid  ?2 the latest instant to forget
DELETE FROM penstock_stats_report WHERE queue = ?1 AND at <= ?2

-- name: tasks
-- Number of tasks of a period.  ?1 qid  ?2 resolution  ?3 period
SELECT count(*) FROM penstock_task_stats WHERE queue = ?1 AND resolution = ?2 AND period = ?3

-- name: one
-- ?1 qid  ?2 resolution  ?3 period  ?4 task
SELECT stats FROM penstock_task_stats WHERE queue = ?1 AND resolution = ?2 AND period = ?3 AND task = ?4

-- name: put
-- ?1 qid  ?2 resolution  ?3 period  ?4 task  ?5 stats
INSERT INTO penstock_task_stats (queue, resolution, period, task, stats) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (queue, resolution, period, task) DO UPDATE SET stats = ?5

-- name: forget_periods
-- ?1 qid  ?2 resolution  ?3 the oldest period to keep
DELETE FROM penstock_task_stats WHERE queue = ?1 AND resolution = ?2 AND period < ?3

-- name: forget_future
-- Periods of a clock that was set back.  ?1 qid  ?2 resolution  ?3 the latest period to keep
DELETE FROM penstock_task_stats WHERE queue = ?1 AND resolution = ?2 AND period > ?3

-- name: rows
-- By period and task.  ?1 qid  ?2 resolution  ?3 the first period  ?4 the last period  ?5 task, or NULL for all
SELECT task, period, stats FROM penstock_task_stats
WHERE queue = ?1 AND resolution = ?2 AND period BETWEEN ?3 AND ?4 AND (?5 IS NULL OR task = ?5)
ORDER BY period, task

-- name: error
-- ?1 qid  ?2 name  ?3 task  ?4 kind  ?5 message  ?6 count  ?7 first at  ?8 last at  ?9 job
INSERT INTO penstock_error (queue, name, task, kind, message, count, first_at, last_at, job)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (queue, name) DO UPDATE SET
    count = count + ?6, first_at = min(first_at, ?7), last_at = max(last_at, ?8), job = ?9

-- name: forget_errors
-- ?1 qid  ?2 the latest instant to forget
DELETE FROM penstock_error WHERE queue = ?1 AND last_at <= ?2

-- name: groups
-- ?1 qid
SELECT count(*) FROM penstock_error WHERE queue = ?1 AND name <> ''

-- name: oldest_groups
-- Those whose last errors are the oldest.  ?1 qid  ?2 limit
SELECT name, count, first_at, last_at, job FROM penstock_error INDEXED BY penstock_error_last
WHERE queue = ?1 AND name <> '' ORDER BY last_at LIMIT ?2

-- name: forget_group
-- ?1 qid  ?2 name
DELETE FROM penstock_error WHERE queue = ?1 AND name = ?2

-- name: errors
-- ?1 qid  ?2 later than this  ?3 task, or NULL for all
SELECT name, task, kind, message, count, first_at, last_at, job FROM penstock_error
WHERE queue = ?1 AND last_at > ?2 AND (?3 IS NULL OR task = ?3)

-- name: drop_periods
-- ?1 qid
DELETE FROM penstock_task_stats WHERE queue = ?1

-- name: drop_reports
-- ?1 qid
DELETE FROM penstock_stats_report WHERE queue = ?1

-- name: drop_errors
-- ?1 qid
DELETE FROM penstock_error WHERE queue = ?1

-- name: size
-- Number of the first jobs, and the bytes of their variable columns.  ?1 qid  ?2 most jobs
SELECT count(*), sum(length(spec) + length(id) + ifnull(length(errors), 0) + ifnull(length(result), 0)
                     + ifnull(length(progress), 0) + ifnull(length(checkpoint), 0) + ifnull(length(members), 0))
FROM (SELECT * FROM penstock_job WHERE queue = ?1 LIMIT ?2)
