"""Statistics: thin, typed wrappers over scipy and statsmodels, one result dataclass each.

================ =============================================================
module           what is in it
================ =============================================================
``paired``       ``sign_flip_test``, ``mcnemar_exact``, ``tost_paired``
``power``        ``minimal_detectable_effect``
``resampling``   ``cluster_means``, ``cluster_bootstrap``
``proportions``  ``wilson_interval``, ``binomial_test``
``multiplicity`` ``holm``
``agreement``    ``prediction_interval``
``exact``        ``sign_flip_exact``, ``sign_flip_p_values``
``labels``       ``label_permutation_exact``
``lattice``      data on a common grid of whole numbers, exact counting
``bounds``       ``plus_one_bound``
``gatekeeping``  ``fixed_sequence``
``calibration``  ``rejection_rate``, ``a_a``
================ =============================================================

Three conventions hold in all of them: a test rejects when ``p <= alpha``; the unit of paired and
resampled data is the cluster (a context, a seed: what the claim generalises over), one number
each; bad input raises ``ValueError`` with one sentence that names the argument.

Import from the modules: this file imports nothing, so that a change to one of them reruns its users
only, and a prediction interval does not wait for pandas and statsmodels.
"""
