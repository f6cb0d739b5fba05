"""Queue wait to replicas: the autoscaler's policy, its simulation, and a lab that runs the real one on one machine."""

from typing import Final

# The two external metrics: mean wait of the requests that ended in the window, ms; slots in use, mean over a minute, summed over the replicas.
QUEUE_WAIT: Final = "queue_wait_ms"
SLOTS_IN_USE: Final = "slots_in_use"
