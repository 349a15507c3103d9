"""What the writers of C++, Triton and Python text share."""
