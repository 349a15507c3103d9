"""From the torch level to ATen: lowering, partitioning by what a backend supports, output plans."""
