"""Higher-order operators, and others of ours: what they are, not how they are lowered."""
