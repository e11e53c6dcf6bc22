"""Claims: the ledger, the evidence and the rules that turn evidence into verdicts.

============ =======================================================================
module       what is in it
============ =======================================================================
``ledger``   ``load_ledger``: claims.yaml, checked
``rules``    the language of decision rules
``evidence`` ``Evidence``: what a paper's analysis returns for one claim
``verdicts`` ``decide``: rule + evidence -> ``Decision``; claims.json
``table``    decisions as text: estimates, p-values, rows
============ =======================================================================

Import from the modules: this file imports nothing.
"""
