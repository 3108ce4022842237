"""Real producers, workers and a server, which are killed, frozen, restarted and cut off.

``python -m chaos`` in the folder ``tests`` runs it; ``docs/reliability.md`` says what it shows.
"""
