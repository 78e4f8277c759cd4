"""Factors for channels in front of an upper bound, as the 6 of a Relu6: they must not bring a channel there.

`min(x, 6)` does not commute with a factor. But a channel that stays below 3 on all samples is the same whether it is
clamped at 6 or at 4. Such a channel wastes half of the codes of a tensor that others fill. So channels that reach the
bound keep their size. The others are enlarged, with room left for larger values in other samples.
"""

from __future__ import annotations

import numpy as np

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.stats import Stats
from onnxq.rescaling.groups import ScaleGroup

# A channel that is almost zero on all samples may be larger on others. Enlarged four times, it has lost 15/16 of its
# share in the error, and more gains nothing
LEAST = 1 / 16


def required_headroom(group: ScaleGroup, stats: Stats) -> np.ndarray | None:
    """Tell how much of the room below its upper bounds each channel of a group may need.

    The greatest value of another sample is expected to exceed the greatest one as that exceeds the next sample's.

    Args:
        group: Values that are divided together, some of them bounded.
        stats: Of the float model, by channel.

    Returns:
        `[channels]`, more than 0; None where a bounded value was not measured.

    """
    needed = np.full(group.channels, LEAST)
    for value, bound in group.limits.items():
        known = stats.tensors.get(value.name)
        if bound <= 0 or known is None or ChannelStats not in known:
            return None
        channels = known[ChannelStats]
        if channels.channels != group.channels or channels.batches < 2:
            return None
        first, second = channels.high.astype(np.float64)
        needed = np.maximum(needed, (2 * first - second) / bound)
    return needed
