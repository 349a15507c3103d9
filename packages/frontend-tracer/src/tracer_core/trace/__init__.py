"""What an instruction means on real objects; why a graph ends there."""
