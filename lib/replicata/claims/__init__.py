"""Claims: the ledger, the evidence and the rules that turn evidence into verdicts."""
