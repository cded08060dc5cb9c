"""Workers: one process per runtime, each holding the model and answering timed commands.

A peer's worker runs in that peer's own environment, where neither this package nor its dependencies exist. So the
modules here import nothing of ``ultrafast`` (but for ``ultrafast_engine``, which runs in ours), only their siblings.
"""
