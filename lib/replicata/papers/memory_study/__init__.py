"""The memory study: luck that an agent writes down as a lesson, and what it chooses next.

Kazuki Nakayashiki's preregistered study of agents that write lessons from noisy outcomes: a model
writes a lesson after a run that ended by luck, and a fresh session of the same model, given the
authoritative log, that outcome and one memory, picks the first tool of the next run. Two outcomes
by two memories in synthetic worlds give the luck carried over as an interaction.

Ours: the worlds and all texts, the guided way of writing, the tests and bounds, and the
preregistration that the study is run under (``replicata.preregistration``). ``registration.py`` is
what is frozen; ``experiment.py`` runs the same study as cells of the pipeline.
"""
