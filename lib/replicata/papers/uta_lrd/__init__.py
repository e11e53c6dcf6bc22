"""uta_lrd: learning-rate decay that adapts to the state of training.

Paper: Anda Tang, Junjie Wang, Xuanlin Yang and two others. Decay is a closed-loop problem of shape
and scale: a continuous-time problem has a piecewise optimal solution that depends on the training
state. It follows the budget-aware schedule UBA (arXiv 2505.24452).

Ours: the closed loop ("UTA-R"), its two measured scalars, the laboratory with its numerical optimum
and every test (the abstract is all we had; ``claims.yaml`` says what is stated).
"""
