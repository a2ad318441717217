"""lmstfy's HTTP interface over any store: its clients work unchanged (docs/lmstfy.md).

| module | contents |
|---|---|
| `service.py` | the two listeners and the services behind them |
| `requests.py` | how a request is read, and how an answer is written, byte for byte |
| `access.py`, `limits.py` | who may send it: tokens and their limits, as documents of the store |
| `data_api.py` | from a request to the store and back |
| `jobs.py` | publish requests as jobs, and jobs as lmstfy shows them |
| `polls.py`, `dispatcher.py` | consume: long polls as records, served in the order of their arrival |
| `queue_requests.py` | sizes, dead letters, and jobs that a consumer holds: touch, release, give up |
| `backend.py`, `timers.py` | a store as a pool: due jobs, jobs whose TTR is over, calls that requests share |
| `admin_api.py` | the listener that manages tokens, and the routes of operators |
| `metrics.py` | what Prometheus sees |
| `names.py` | names of queues, ids of jobs and requests |
| `settings.py` | lmstfy's file, and what a reload changes |
| `migration.py`, `old_pools.py`, `upstream.py` | a pool whose jobs move to another one |

A job is a raw job with the task `lmstfy` in the queue `NAMESPACE.QUEUE`, so a Penstock worker can serve it.
"""

from penstock.core.installation import HTTP_SERVER, require_extra

require_extra("web", HTTP_SERVER, "the HTTP interface of lmstfy")
