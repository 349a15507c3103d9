"""C++ for CPUs: compiler, build of shared libraries, calls."""
