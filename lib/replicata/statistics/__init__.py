"""Statistics: paired tests, cluster bootstrap, equivalence, multiplicity, power."""
