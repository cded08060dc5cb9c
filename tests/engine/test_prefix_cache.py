"""The prefix cache over random histories, with a memory that knows what a block's entries depend on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast.engine.kv_cache import BlockPool
from ultrafast.engine.prefix_cache import PrefixCache, Reservation, _Node

BLOCK_TOKENS = 4
Entry = tuple[object, ...]  # salt, then all tokens up to this one: what its keys and values are a function of


@dataclass(eq=False)
class Running:
    tokens: list[int]
    reservation: Reservation
    capacity: int
    salt: str

    def entry(self, index: int) -> Entry:
        return (self.salt, *self.tokens[: index + 1])


class World:
    """Sequences that reserve, compute and end, and the memory they write to."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks, BLOCK_TOKENS)
        self.cache = PrefixCache(self.pool)
        self.memory: list[list[Entry]] = [[()] * BLOCK_TOKENS for _ in range(blocks)]
        self.running: list[Running] = []

    def reserve(self, *requests: tuple[list[int], int], salt: str = "") -> list[Reservation | None]:
        """Admit some at once, then copy, then compute: the order of a step."""
        admitted: list[Running] = []
        found: list[Reservation | None] = []
        for prompt, more in requests:
            common = self.longest_common(salt, prompt[:-1])
            free = self.cache.free_count
            kept = self.kept()
            tokens, capacity = np.array(prompt, np.int32), len(prompt) + more
            could = self.cache.could_reserve(tokens, capacity, salt, [])
            reservation = self.cache.reserve(tokens, capacity, salt)
            assert could == (reservation is not None)
            found.append(reservation)
            if reservation is None:
                assert (self.cache.free_count, self.kept()) == (free, kept)
                continue
            assert reservation.cached_tokens == common
            assert len(reservation.blocks) * BLOCK_TOKENS >= len(prompt) + more
            admitted.append(Running(list(prompt), reservation, capacity, salt))
        for item in admitted:
            if item.reservation.copied_block >= 0:
                first = item.reservation.blocks[len(item.reservation.shared)]
                self.memory[first] = list(self.memory[item.reservation.copied_block])
        for item in admitted:
            self.running.append(item)
            self.check_entries(item, item.reservation.cached_tokens)
            self.write(item, item.reservation.cached_tokens)
        self.check()
        return found

    def extend(self, item: Running, tokens: list[int]) -> None:
        start = len(item.tokens)
        item.tokens += tokens[: item.capacity - start]
        self.write(item, start)

    def write(self, item: Running, start: int) -> None:
        for index in range(start, len(item.tokens)):
            block, slot = item.reservation.blocks[index // BLOCK_TOKENS], index % BLOCK_TOKENS
            assert index // BLOCK_TOKENS >= len(item.reservation.shared), "wrote to a shared block"
            self.memory[block][slot] = item.entry(index)

    def end(self, item: Running, computed: int | None) -> None:
        self.running.remove(item)
        tokens = None if computed is None else np.array(item.tokens[:computed], np.int32)
        self.cache.release(item.reservation, tokens)
        self.check()

    def check_entries(self, item: Running, count: int) -> None:
        for index in range(count):
            entry = self.memory[item.reservation.blocks[index // BLOCK_TOKENS]][index % BLOCK_TOKENS]
            assert entry == item.entry(index)

    def nodes(self) -> list[tuple[Entry, _Node]]:
        """Every node with its salt and all tokens down to it."""
        found: list[tuple[Entry, _Node]] = []
        heap: list[tuple[Entry, _Node]] = [((salt.decode(),), root) for salt, root in self.cache._roots.items()]
        while heap:
            before, node = heap.pop()
            for child in node.children.values():
                tokens = (*before, *np.frombuffer(child.tokens, np.int32).tolist())
                found.append((tokens, child))
                heap.append((tokens, child))
        return found

    def kept(self) -> set[Entry]:
        return {tokens for tokens, _ in self.nodes()}

    def longest_common(self, salt: str, wanted: list[int]) -> int:
        def common(entry: Entry) -> int:
            equal = [a == b for a, b in zip(entry, (salt, *wanted), strict=False)]
            return equal.index(False) if False in equal else len(equal)

        return max((common(entry) - 1 for entry in self.kept() if entry[0] == salt), default=0)

    def check(self) -> None:
        nodes = self.nodes()
        assert all(root.children for root in self.cache._roots.values())
        own = [block for item in self.running for block in item.reservation.blocks[len(item.reservation.shared) :]]
        kept = [node.block for _, node in nodes]
        assert sorted([*own, *kept, *self.pool._free]) == list(range(self.pool.block_count))
        for _, node in nodes:
            users = sum(node in item.reservation.shared for item in self.running)
            assert node.users == users
            assert (node in self.cache._unused) == (users == 0)
            assert len(node.tokens) == 4 * BLOCK_TOKENS or not node.children
        order = list(self.cache._unused)
        assert len(order) == sum(node.users == 0 for _, node in nodes)
        for place, node in enumerate(order):
            assert all(child in order[:place] for child in node.children.values())
        for entry, node in nodes:
            for slot in range(len(node.tokens) // 4):
                start = (len(entry) - 2) // BLOCK_TOKENS * BLOCK_TOKENS
                assert self.memory[node.block][slot] == entry[: start + slot + 2]
        for item in self.running:
            self.check_entries(item, len(item.tokens))


# Two tokens, so that prompts meet and part everywhere.
texts = st.lists(st.integers(0, 1), min_size=1, max_size=20)
actions = st.one_of(
    st.tuples(
        st.sampled_from(["reserve", "reserve other"]),
        st.lists(st.tuples(texts, st.integers(1, 12)), min_size=1, max_size=3),
    ),
    st.tuples(st.just("extend"), st.tuples(st.integers(0, 100), texts)),
    st.tuples(st.just("end"), st.tuples(st.integers(0, 100), st.integers(-1, 30))),
    st.tuples(st.just("clear"), st.none()),
)


@settings(max_examples=400, deadline=None)
@given(history=st.lists(actions, max_size=60), blocks=st.integers(1, 16))
def test_random_histories(history: list[tuple[str, object]], blocks: int) -> None:
    world = World(blocks)
    for action in history:
        match action:
            case "reserve" | "reserve other" as salt, list(requests):
                fitting = (request for request in requests if world.cache.holds(len(request[0]) + request[1]))
                world.reserve(*fitting, salt=salt)
            case "extend", (int(which), list(tokens)) if world.running:
                world.extend(world.running[which % len(world.running)], tokens)
            case "end", (int(which), int(computed)) if world.running:
                item = world.running[which % len(world.running)]
                most = max(item.reservation.cached_tokens, min(computed, len(item.tokens)))
                world.end(item, most if computed >= 0 else None)
            case "clear", None:
                world.cache.clear()
                assert all(node.users for _, node in world.nodes())
                world.check()
    while world.running:
        world.end(world.running[0], len(world.running[0].tokens))
    assert world.cache.free_count == blocks
    # What is kept never stands in the way: one sequence may still have everything.
    (whole,) = world.reserve(([7], blocks * BLOCK_TOKENS - 1))
    assert whole is not None


def test_the_least_recently_used_goes_first() -> None:
    world = World(4)
    for first in (10, 20, 30):
        world.reserve(([first, 1, 2, 3], 0))
        world.end(world.running[0], 4)
    world.reserve(([10, 1, 2, 9], 0))  # used again, by a copy
    world.end(world.running[0], 4)
    world.reserve(([40, 1, 2, 3], 0))
    world.end(world.running[0], 4)
    assert world.kept() == {("", 10, 1, 2, 3), ("", 10, 1, 2, 9), ("", 30, 1, 2, 3), ("", 40, 1, 2, 3)}


def test_salts_share_blocks_and_their_order_but_no_prefix() -> None:
    """FAULTS row 15: what one project asked makes no prompt of another quicker."""
    world = World(4)
    for salt in ("a", "b", "c"):
        (reservation,) = world.reserve(([1, 2, 3, 4, 5], 0), salt=salt)
        assert reservation is not None
        assert reservation.cached_tokens == 0
        world.end(world.running[0], 5)
    assert set(world.cache._roots) == {b"b", b"c"}, "the oldest made room, its salt is forgotten"
    world.cache.clear()
    assert world.cache._roots == {}


def test_what_would_be_free_is_known_beforehand() -> None:
    world = World(6)
    story = np.arange(9, dtype=np.int32)
    world.reserve((story.tolist(), 3))  # 3 blocks
    world.end(world.running[0], 9)
    world.reserve((story.tolist(), 3), (story.tolist(), 3))  # 2 shared blocks, 1 of their own each
    first, second = (item.reservation for item in world.running)
    other = np.arange(100, 120, dtype=np.int32)
    assert not world.cache.could_reserve(other[:9], 12, "", [])
    assert world.cache.could_reserve(story, 16, "", []), "two of its blocks are in use and need not be free"
    assert not world.cache.could_reserve(story, 16, "other", [])
    assert world.cache.could_reserve(other[:9], 12, "", [first])
    assert not world.cache.could_reserve(other, 20, "", [first])
    assert world.cache.could_reserve(other, 24, "", [first, second]), "shared by these two only"


def test_a_conversation_is_kept_once() -> None:
    world = World(8)
    tokens = [1, 2, 3]
    for turn in range(5):
        (reservation,) = world.reserve((tokens, 4))
        assert reservation is not None
        assert reservation.cached_tokens == (len(tokens) - 3 if turn else 0)
        world.extend(world.running[0], [turn])
        tokens = [*world.running[0].tokens, 8, 9, 8]
        world.end(world.running[0], len(tokens) - 3)
    assert len(world.nodes()) == -(-(len(tokens) - 3) // BLOCK_TOKENS)


@pytest.mark.parametrize("computed", [None, 0])
def test_what_failed_or_never_ran_is_not_kept(computed: int | None) -> None:
    world = World(2)
    world.reserve(([1, 2, 3, 4, 5], 1))
    world.end(world.running[0], computed)
    assert world.kept() == set()
    assert world.pool.free_count == 2
