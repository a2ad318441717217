"""Random programs with durable steps, each played against a direct run of the same text.

- `language.py`: programs as data. `source.py`: a program as Python text, which is what runs.
- `generate.py`: programs by a seed and a size. `shrink.py`: the smallest one that still fails.
- `direct.py`: the same text run without a store; `judge.py` compares.
- `world.py`: the world outside of the store: effects, planned failures, and what each run has seen.
- `fleet.py`: runs many programs by a worker, each with a fault of its own.
"""
