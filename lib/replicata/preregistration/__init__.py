"""Preregistration: freeze a protocol, attest its time, collect records, seal, analyse, audit.

=================== ====================================================================
module              what is in it
=================== ====================================================================
``study``           what a study gives: `Study`, `PlannedCell`, `Answer`, `Observation`
``paired``          a ready study for paired scores and exact sign-flip tests
``protocol``        the schema of ``draft.yaml``
``canonical``       RFC 8785 JSON
``places``          paths, and the state machine that is read from them
``manifest``        digests of the files that results depend on
``freeze``          ``freeze``: draft -> frozen.json
``registration``    the frozen protocol with its amendments
``archive``         deterministic zip
``authority``       timestamp authorities: HTTP, and a local one for tests
``timestamp``       RFC 3161 tokens
``opentimestamps``  optional proofs
``anchor``          git: clean tree, attributes, anchoring commit
``chain``           hash-chained JSON lines
``records``         ``Shard``: append-only records
``collect``         ``collect``: the confirmatory run
``seal``            ``seal``: counts and heads of all shards
``analysis``        ``analyze``: labelled results and verdicts
``deviations``      ``deviate``
``amendments``      ``amend``
``audit``           ``audit``: items A1 to A20
``cli``             ``replicata prereg ...``
=================== ====================================================================

None of it proves that there was just one protocol, or that no answer was asked for outside the
records: a person can freeze many protocols, or run in private first. Late-bound seeds, stamps from
someone else and the pilot's disclosure make that harder; they do not exclude it.
"""
