"""Graph, device and conditions as physical quantities per operator: what the additive network reads.

Every column is a ratio, a size in its logarithm, or a property of the operator: how long the kernel takes by predictor
0's account, how much of the device's peaks that would use, how it cuts into tiles, what it is. The device enters by
these ratios alone.

Operators that are alike, and whose neighbours up to two steps away are alike, get the same embeddings in a network of
two rounds of messages. They are merged into one class with a count, which is exact and makes graphs of repeated blocks
several times smaller. Views launch nothing: they are taken out, and what they connect is joined.
"""

from dippm.features.physical.classes import ROUNDS
from dippm.features.physical.columns import COLUMNS, LARGEST_CORRECTION, LAUNCH_MS, STATIC
from dippm.features.physical.links import Messages
from dippm.features.physical.plan import PhysicalPlan, PhysicalSamples
from dippm.features.physical.ramps import Ramps

__all__ = [
    "COLUMNS",
    "LARGEST_CORRECTION",
    "LAUNCH_MS",
    "ROUNDS",
    "STATIC",
    "Messages",
    "PhysicalPlan",
    "PhysicalSamples",
    "Ramps",
]
