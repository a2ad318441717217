"""The shop of `penstock demo --serve`: sample data in all states, and workers that continue it.

| module | contents |
|---|---|
| `shop.py` | the app with its tasks |
| `history.py` | the jobs of the last day, with their errors and statistics |
| `present.py` | what is open now: flows, delayed, parked and dead jobs, what operators did; and new jobs |
"""
