"""Blocks that outlive their sequence, found again by their tokens: what two prompts begin with is computed once.

Keys and values depend on tokens and positions alone, so a block may serve every sequence that has the same tokens up to
its end. Ended sequences therefore leave their blocks in a tree, a block a node, its children the blocks that followed
it. A new sequence shares the whole blocks of the longest path its prompt follows, and copies the block in which it
parts from it, so that not one token they have in common is computed again.

There is a tree per salt: how fast a prompt is served tells what was asked before, so prefixes are shared only within
one. Blocks, and the order in which they are forgotten, are common to all.

Kept blocks are free ones with a memory: reserving takes the least recently used whenever it needs more.

Invariants, held by tests over random histories:
- a block is free, or belongs to one running sequence, or is one node;
- whoever uses a node uses every node above it, so nodes that nobody uses have none below that somebody does;
- among the unused, a node stands behind all that are below it: the first is always a leaf;
- a root has children: a salt of which nothing is kept leaves no trace.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from ultrafast.engine.kv_cache import BlockPool

Tokens = NDArray[np.int32]

_TOKEN_BYTES = 4


@dataclass(slots=True, eq=False)
class _Node:
    """One kept block. Only a leaf may hold fewer tokens than a block; such a one is copied, never shared.

    A root is a node without a block or a parent.
    """

    tokens: bytes  # int32 each, the key among the parent's children; of a root the salt, the key among the roots
    block: int
    parent: _Node | None
    children: dict[bytes, _Node] = field(default_factory=dict)
    users: int = 0  # running sequences whose blocks include this one


@dataclass(slots=True, frozen=True, eq=False)
class Reservation:
    """Every block that one sequence can ever need, in order, and what of its prompt they hold already."""

    blocks: list[int]
    cached_tokens: int = 0
    # To be copied over the first block that is not shared, before anything is written to any block; −1: none.
    copied_block: int = -1
    shared: list[_Node] = field(default_factory=list)
    salt: bytes = b""


class PrefixCache:
    """Reserves blocks for sequences and keeps what they leave, for those of the same salt."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_bytes = pool.block_tokens * _TOKEN_BYTES
        self._roots: dict[bytes, _Node] = {}  # by salt
        self._unused: dict[_Node, None] = {}  # least recently used first

    @property
    def block_count(self) -> int:
        """Blocks there are."""
        return self._pool.block_count

    @property
    def free_count(self) -> int:
        """How many blocks no running sequence needs, kept ones included."""
        return self._pool.free_count + len(self._unused)

    def holds(self, tokens: int) -> bool:
        """Whether the cache, all its blocks free, could hold a sequence of so many tokens."""
        return self._pool.blocks_for(tokens) <= self._pool.block_count

    def could_reserve(self, prompt: Tokens, capacity: int, salt: str, released: list[Reservation]) -> bool:
        """Whether ``reserve`` would succeed once those of ``released`` are given back."""
        users = Counter(node for reservation in released for node in reservation.shared)
        gained = sum(len(item.blocks) - len(item.shared) for item in released)
        gained += sum(node.users == count for node, count in users.items())
        # A shared block that stays in use is the only one that need not be free or become so.
        held = sum(node.users > users[node] for node in self._shared(self._root(salt.encode()), prompt[:-1].tobytes()))
        return self._pool.blocks_for(capacity) - held <= self.free_count + gained

    def reserve(self, prompt: Tokens, capacity: int, salt: str = "") -> Reservation | None:
        """Blocks for ``capacity`` tokens that begin with ``prompt``; ``None``, all unchanged, where too few are free.

        The last token of a prompt is never taken from the cache: its logits are wanted.
        """
        wanted = prompt[:-1].tobytes()
        root = self._root(salt.encode())
        shared = self._shared(root, wanted)
        fresh = self._pool.blocks_for(capacity) - len(shared)
        if fresh > self.free_count - sum(node.users == 0 for node in shared):
            return None
        parted, common = self._parted(shared[-1] if shared else root, wanted[len(shared) * self._block_bytes :])
        for node in shared:
            node.users += 1
            self._unused.pop(node, None)
        if parted is not None:
            # Not pinned: should the loop below take this very block, its content is still there to be copied, for
            # nothing is written until every copy of a step is made.
            self._touch(parted)
        while self._pool.free_count < fresh:
            self._forget(next(iter(self._unused)))
        blocks = self._pool.reserve(fresh)
        assert blocks is not None
        return Reservation(
            [node.block for node in shared] + blocks,
            len(shared) * self._pool.block_tokens + common,
            -1 if parted is None else parted.block,
            shared,
            root.tokens,
        )

    def release(self, reservation: Reservation, tokens: Tokens | None) -> None:
        """Take a sequence's blocks back and keep those of ``tokens``, what they hold; ``None``: they hold no truth."""
        path = list(reservation.shared)
        spare = reservation.blocks[len(path) :]
        if tokens is not None:
            start = path[-1] if path else self._root(reservation.salt)
            spare = self._keep(start, path, spare, tokens[len(path) * self._pool.block_tokens :].tobytes())
        self._pool.release(spare)
        for node in reservation.shared:
            node.users -= 1
        for node in reversed(path):
            self._touch(node)

    def clear(self) -> None:
        """Forget everything that no running sequence uses."""
        for node in list(self._unused):
            self._forget(node)

    def _root(self, salt: bytes) -> _Node:
        """The root of a salt; one that nothing is kept under yet is not in the table."""
        return self._roots.get(salt) or _Node(salt, -1, None)

    def _shared(self, node: _Node, wanted: bytes) -> list[_Node]:
        """The nodes of whole blocks below ``node`` that ``wanted`` begins with."""
        path: list[_Node] = []
        for start in range(0, len(wanted) - self._block_bytes + 1, self._block_bytes):
            child = node.children.get(wanted[start : start + self._block_bytes])
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _parted(self, parent: _Node, wanted: bytes) -> tuple[_Node | None, int]:
        """The block after ``parent`` that has the most first tokens in common with ``wanted``, and how many."""
        rest = wanted[: self._block_bytes]
        best, most = None, 0
        for node in parent.children.values():
            common = _common_tokens(node.tokens, rest)
            if common > most:
                best, most = node, common
        return best, most

    def _keep(self, node: _Node, path: list[_Node], blocks: list[int], content: bytes) -> list[int]:
        """Continue ``path``, which ends at ``node``, by the nodes of ``content``, which lies in ``blocks``.

        Returns the blocks it did not take.
        """
        spare: list[int] = []
        for index, block in enumerate(blocks):
            tokens = content[index * self._block_bytes : (index + 1) * self._block_bytes]
            found = node.children.get(tokens)
            if not tokens or (found is None and self._is_covered(node, tokens)):
                return spare + blocks[index:]
            if found is None:
                found = node.children[tokens] = _Node(tokens, block, node)
                if node.parent is None:
                    self._roots[node.tokens] = node
            else:
                spare.append(block)  # computed twice, by neighbours: the same bits
            node = found
            path.append(node)
        return spare

    def _is_covered(self, node: _Node, tokens: bytes) -> bool:
        """Whether a child of ``node`` holds ``tokens`` and more; children that hold less than they do are forgotten."""
        for other in list(node.children.values()):
            if other.tokens.startswith(tokens):
                self._touch(other)
                return True
            if tokens.startswith(other.tokens):
                self._forget(other)
        return False

    def _touch(self, node: _Node) -> None:
        """Make an unused node the most recently used one."""
        if node.users == 0:
            self._unused.pop(node, None)
            self._unused[node] = None

    def _forget(self, node: _Node) -> None:
        parent = node.parent
        assert parent is not None
        del self._unused[node]
        del parent.children[node.tokens]
        if parent.parent is None and not parent.children:
            del self._roots[parent.tokens]
        self._pool.release([node.block])


def _common_tokens(left: bytes, right: bytes) -> int:
    if left[:_TOKEN_BYTES] != right[:_TOKEN_BYTES]:
        return 0
    pairs = zip(memoryview(left).cast("i"), memoryview(right).cast("i"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
