"""The decision head: from mismatches seen while decoding to a judge of them (WISV, Section V)."""
