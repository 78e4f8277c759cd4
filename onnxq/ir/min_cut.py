"""A flow network, and its least cut (Dinic 1970), the same on every machine.

Tests: `tests/planning/test_partition.py`.
"""

from __future__ import annotations

INFINITE = 1e18  # a capacity that no cut goes through
LEAST = 1e-9  # of a capacity that flow goes through


class Flow:
    """A flow network over integers as nodes; 0 is the source, 1 the sink."""

    def __init__(self) -> None:
        self.targets: list[int] = []  # of each edge; edge i ^ 1 is the reverse of i
        self.left: list[float] = []  # capacity of each edge
        self.out: list[list[int]] = [[], []]

    def node(self) -> int:
        """Add a node."""
        self.out.append([])
        return len(self.out) - 1

    def edge(self, start: int, end: int, capacity: float) -> None:
        """Add a directed edge."""
        if capacity > 0:
            number = len(self.targets)
            self.out[start].append(number)
            self.out[end].append(number + 1)
            self.targets += (end, start)
            self.left += (capacity, 0.0)

    def source_side(self) -> set[int]:
        """Return the nodes on the source's side of the least cut; of several least cuts, the smallest such set."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return {node for node, depth in enumerate(level) if depth >= 0}
            self._push(level)

    def _levels(self) -> list[int]:
        level = [-1] * len(self.out)
        level[0] = 0
        queue, out, targets, capacities = [0], self.out, self.targets, self.left
        for node in queue:  # which grows
            deeper = level[node] + 1
            for index in out[node]:
                target = targets[index]
                if level[target] < 0 and capacities[index] > LEAST:
                    level[target] = deeper
                    queue.append(target)
        return level

    def _push(self, level: list[int]) -> None:
        """Send flow along all shortest paths, found by depth-first search without recursion."""
        out, targets, capacities = self.out, self.targets, self.left
        cursor = [0] * len(out)
        path: list[int] = []
        node = 0
        while True:
            edges, deeper = out[node], level[node] + 1
            for place in range(cursor[node], len(edges)):
                index = edges[place]
                target = targets[index]
                if level[target] == deeper and capacities[index] > LEAST:
                    cursor[node] = place
                    path.append(index)
                    node = target
                    break
            else:
                cursor[node] = len(edges)
                if not path:
                    return
                node = targets[path.pop() ^ 1]
                cursor[node] += 1
            if node == 1:
                amount = min([capacities[index] for index in path])
                for index in path:
                    capacities[index] -= amount
                    capacities[index ^ 1] += amount
                # The next search would come here again: as far as edges have something left
                full = next(place for place, index in enumerate(path) if capacities[index] <= LEAST)
                node = targets[path[full] ^ 1]
                del path[full:]
