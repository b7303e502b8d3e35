"""Many runs: in processes of their own, or on Ray."""
