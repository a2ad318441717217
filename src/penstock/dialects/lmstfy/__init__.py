"""lmstfy's HTTP interface over any store: its clients work unchanged (docs/lmstfy.md).

| module | contents |
|---|---|
| `service.py` | the two listeners and the services behind them |
| `routes.py`, `parameters.py`, `bodies.py` | requests and answers, byte for byte |
| `data_api.py` | publish, bulk, republish, peek, ack, size, destroy |
| `poll.py`, `dispatcher.py` | consume: long polls as records, served in the order of their arrival |
| `lease_requests.py` | touch, release and give up a job, acknowledge it with a check |
| `dead_letters.py` | peek, respawn and delete dead letters |
| `access.py` | which caller may send a request |
| `tokens.py`, `limits.py` | tokens and their limits, as documents of the store |
| `admin_api.py`, `limits_api.py` | the listener that manages them |
| `counters.py`, `metrics.py` | what Prometheus sees |
| `jobs.py`, `job_ids.py`, `names.py` | lmstfy's jobs, ids and names as those of Penstock |
| `config_file.py`, `defaults.py` | lmstfy's file, and what a reload changes |
| `migration.py`, `old_pools.py`, `upstream.py`, `taking_over.py` | a pool whose jobs move to another one |
| `operations.py` | the access log switch, reload, metrics of several processes |
| `timers.py` | due jobs, jobs whose TTR is over |

A job is a raw job with the task `lmstfy` in the queue `NAMESPACE.QUEUE`, so a Penstock worker can serve it.
"""
