"""Decision head: collection of mismatches, labelling, relabelling, training and evaluation (WISV, Section V)."""
