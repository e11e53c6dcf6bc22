"""AT-AT: Automatic Tool Optimization from Agent Traces.

Maya Ravichandran, Pragya Tripathi, Dharamendra Kumar and others. The agent stays as it is; what
changes is the tool set it shares with others. Offline, from traces with evaluations, descriptions
and, where allowed, implementations are edited selectively.

Ours: the fixed agent (a router on a sentence encoder), the deterministic trace miner, the edit
grammar with its gates, study S1 on public requests (BFCL), and study S2 on three small MCP servers
with planted defects. S2 is a mechanism test: it replicates no enterprise result.
"""
