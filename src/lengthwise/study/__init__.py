"""Many runs."""
