"""Many runs: a sweep, here or on a cluster; what is left to do, and remarks on what came out."""
