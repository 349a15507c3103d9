"""CPython's own tests as a conformance suite: each test method natively and compiled."""
