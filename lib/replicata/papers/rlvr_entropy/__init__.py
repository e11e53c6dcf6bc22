"""rlvr_entropy: entropy drift in RLVR comes from sampler mismatch.

Paper: Zhiyuan Wang, Jacob Steeves, Chang Liu. In reinforcement learning with verifiable rewards,
rollouts are drawn from a truncated or tempered distribution that the learner does not apply. Then a
constant shift of the advantage changes the policy's entropy to first order, and the sampler decides
the sign; a baseline weighted by the sampler's sharpness gap removes that drift.

Ours: the proof and its constants, the form of the decomposition, the tiny policy and its tasks, and
how every claim is tested (the abstract is all we had; see ``claims.yaml`` for what is stated).
"""
