"""An HTTP/1.1 server for small requests: one protocol object per connection, no task per request.

| module | contents |
|---|---|
| `bounds.py` | limits of sizes, numbers and times, and who gives up if requests take too much memory |
| `exchange.py` | one request and its answer |
| `replies.py` | the bytes of an answer |
| `connection.py` | the protocol of one connection, on httptools |
| `registry.py` | all connections of a listener: idle ones, deadlines, memory of bodies |
| `server.py` | a listener, graceful stop |
| `hosts.py` | which values of `Host` and `Origin` a listener accepts |
| `sockets.py`, `tls.py` | listening sockets, certificates |
| `access_log.py` | a line in the log per request |
| `processes.py`, `process_link.py` | several processes of one server, and their supervisor |
| `asgi.py` | the same handlers as an ASGI application |
| `debug.py` | stacks, objects and profiles |
| `http_client.py` | requests to another server |
| `group_commit.py` | requests of one turn of the event loop are written to a store together |
| `access_tokens.py`, `access.py` | access tokens: rights on queues, expiry, rates |
| `document_cache.py` | documents of the store in memory |
| `store_metrics.py`, `exposition.py` | metrics of a store, and of several processes, as Prometheus' text |

The server itself knows nothing of jobs: routes are in the packages that use it (`dashboard/`,
`dialects/lmstfy/`). Of a store it knows documents (tokens), and the counts that metrics report.
"""
