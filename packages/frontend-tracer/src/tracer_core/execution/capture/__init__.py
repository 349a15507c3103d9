"""Makes cache entries: what a trace may do, the trace, what follows from one that gives nothing."""
