"""kvfold: folding Attention Matching's bias into the keys.

Paper: Utkarsh Kanwat, on serving an Attention-Matching-compacted KV cache with an unmodified
engine; it builds on "Fast KV Compaction via Attention Matching" (arXiv 2602.16284). Folding writes
the bias that Attention Matching adds to the logits into the kept keys, along one closed-form
direction per head, so that FlashAttention and a paged cache accept the result.

Ours: the formulas of the direction and of the error bound (the paper's abstract states only that
they exist), the rotation that lets a cache of t keys stand for T positions, and budgets per head
for a model without published ones.
"""
