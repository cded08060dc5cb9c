"""The tiers as the engine keeps them: their order, and what each is owed while others are busy.

These are the figures behind every bound on waiting; the rules that use them are in ``admission`` and ``scheduler``.
"""

from __future__ import annotations

import math
from typing import Final

# By rank: a lower one goes first. ``fast`` is another word for ``priority``.
TIER_NAMES: Final = ("ultrafast", "priority", "default", "flex")
TIER_RANKS: Final = {**{name: rank for rank, name in enumerate(TIER_NAMES)}, "fast": 1}
ULTRAFAST: Final = 0

# By rank: how long a sequence stays without progress, waiting or in the middle of its prompt, before it is overdue.
# Three times it is the most that others can cost it before a token: waiting, admitted and preempted at once, waiting
# again, and then behind their prompts. For flex that stays below 600 s.
PATIENCE_SECONDS: Final = (math.inf, 10.0, 30.0, 180.0)
# How often the sequence that is overdue the longest is looked for; so many turns a second are given at most.
OVERDUE_INTERVAL_SECONDS: Final = 0.25

# By rank: the share of time by which the tiers below may slow its decoding; the others always share their steps.
SLOWDOWN_SHARES: Final = {ULTRAFAST: 0.149, 1: 0.5}
# However small the share: running sequences of any tier have a row at least this often, and the steps of the moment, so
# that no reader waits a second for a token. Where steps are long, it is this that costs the higher tier most.
STALL_SECONDS: Final = 0.5
