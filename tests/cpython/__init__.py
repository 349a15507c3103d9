"""CPython's own tests as a conformance suite: each test method eagerly and compiled."""
