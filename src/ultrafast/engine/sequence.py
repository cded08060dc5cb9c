"""One choice of one request, as far as scheduling goes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ultrafast.engine.prefix_cache import Reservation, Tokens
from ultrafast.engine.tiers import TIER_RANKS


@dataclass(slots=True, eq=False, repr=False)  # a prompt shall not come into a message
class Sequence:
    """What is known of it, and how far it is.

    It waits, runs, and may be preempted and wait again any number of times. What it has to compute before its next
    token, ``prefill``, is the prompt at first and all its tokens after a preemption: a resumed sequence differs from a
    new one in nothing else.
    """

    prompt: Tokens
    max_tokens: int
    arrived: float
    tier: str = "default"
    salt: str = ""
    rank: int = field(init=False)
    prompt_length: int = field(init=False)
    output: list[int] = field(default_factory=list)  # tokens sampled; the newest is not computed yet
    prefill: Tokens = field(init=False)
    prefill_length: int = field(init=False)
    computed: int = 0  # tokens whose keys and values are stored
    computed_before: int = 0  # the most of them before it was preempted
    admitted: float = 0.0
    slot: int = -1  # the native sequence number; -1 while waiting and after the end
    reservation: Reservation | None = None  # its blocks, as long as it has a slot
    progressed: float = field(init=False)  # when it arrived, was last admitted, or last had a row in a step
    # It was preempted or is overdue: it keeps its slot until its next token, whoever comes.
    must_progress: bool = False

    def __post_init__(self) -> None:
        self.rank = TIER_RANKS[self.tier]
        self.prompt_length = self.prefill_length = len(self.prompt)
        self.prefill = self.prompt
        self.progressed = self.arrived

    @property
    def capacity(self) -> int:
        """Tokens it can ever have."""
        return self.prompt_length + self.max_tokens

    @property
    def prompt_stored(self) -> int:
        """The most tokens of its prompt that were stored at once: computed, or found."""
        return min(max(self.computed, self.computed_before), self.prompt_length)

    def tokens(self) -> Tokens:
        """Prompt and output."""
        return np.concatenate([self.prompt, np.array(self.output, np.int32)])
