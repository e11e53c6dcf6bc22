"""Training: what TRL and transformers don't give, and only that."""
