"""Equal regions of a graph are lowered once: found in the graph, cut out, and put back as renamed kernel calls."""
