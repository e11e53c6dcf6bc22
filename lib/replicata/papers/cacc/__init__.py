"""cacc: Compatibility-Aware Candidate Construction.

Paper: Qianli Ma, Zhiqing Tang, Fanshuai Meng and others, on small language models that generate
several candidates and rerank them. A correct answer may be in the pool and still be lost to a fixed
selector, because it is unfinished, cannot be parsed, or stands in another answer mode. The paper
calls that loss the hidden interface tax, separates raw oracle coverage from selectable coverage,
and puts a layer between candidates and selector that repairs, aligns and removes noise.

Ours: the formulas of the decomposition, the content of the three operators and of the proposer's
enhancement, the placebo and budget arms, and the condition under which a released candidate raises
accuracy. The abstract names the roles only.
"""
