"""A flow network, and its least cut (Dinic 1970), the same on every machine.

Tests: `tests/planning/test_partition.py`.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1e18  # a capacity that no cut goes through


class Flow:
    """A flow network over integers as nodes; 0 is the source, 1 the sink."""

    def __init__(self) -> None:
        self.edges: list[tuple[int, float]] = []  # target and remaining capacity; edge i ^ 1 is the reverse of i
        self.out: list[list[int]] = [[], []]

    def node(self) -> int:
        """Add a node."""
        self.out.append([])
        return len(self.out) - 1

    def edge(self, start: int, end: int, capacity: float) -> None:
        """Add a directed edge."""
        if capacity > 0:
            self.out[start].append(len(self.edges))
            self.edges.append((end, capacity))
            self.out[end].append(len(self.edges))
            self.edges.append((start, 0.0))

    def source_side(self) -> set[int]:
        """Return the nodes on the source's side of the least cut; of several least cuts, the smallest such set."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return {node for node, depth in enumerate(level) if depth >= 0}
            cursor = [0] * len(self.out)
            while self._push(level, cursor):
                pass

    def _levels(self) -> list[int]:
        level = [-1] * len(self.out)
        level[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for index in self.out[node]:
                target, left = self.edges[index]
                if left > 1e-9 and level[target] < 0:
                    level[target] = level[node] + 1
                    queue.append(target)
        return level

    def _push(self, level: list[int], cursor: list[int]) -> bool:
        """Send flow along one shortest path, found by depth-first search without recursion."""
        path: list[int] = []
        node = 0
        while node != 1:
            while cursor[node] < len(self.out[node]):
                index = self.out[node][cursor[node]]
                target, left = self.edges[index]
                if left > 1e-9 and level[target] == level[node] + 1:
                    path.append(index)
                    node = target
                    break
                cursor[node] += 1
            else:
                if not path:
                    return False
                index = path.pop()
                node = self.edges[index ^ 1][0]
                cursor[node] += 1
        amount = min(self.edges[index][1] for index in path)
        for index in path:
            target, left = self.edges[index]
            self.edges[index] = (target, left - amount)
            back, gained = self.edges[index ^ 1]
            self.edges[index ^ 1] = (back, gained + amount)
        return True
