"""Random programs: seeded, generated as source text, run eagerly and compiled, everything compared."""
