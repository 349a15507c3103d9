"""Work that goes on while eager mode serves: the threads, the modes they take along, and the state
of each compilation."""
