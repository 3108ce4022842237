"""Real producers, workers and a server, which are killed, frozen, restarted and cut off.

``python -m chaos`` in the folder ``tests`` runs it; ``docs/reliability.md`` says what it shows.
"""

import pinned  # noqa: F401 - workers are compared with what the model alone says
