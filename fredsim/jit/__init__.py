"""All that rests on the internals of numba and llvmlite: vectors, pointers, threads, a cache of compiled functions."""
