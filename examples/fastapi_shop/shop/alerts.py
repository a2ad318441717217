"""Reports jobs that have failed for good. The log is JSON: an alert rule matches the logger's name."""

import logging

from penstock import AttemptError, Job

from shop.app import app

logger = logging.getLogger(__name__)


@app.on_dead
async def alert(job: Job, error: AttemptError) -> None:
    logger.error(
        "job is dead: %s: %s", error.kind, error.message, extra={"dead_job": job.id, "dead_task": job.task}
    )
