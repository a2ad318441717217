"""What a job is and what may happen to it: facts and arithmetic, no I/O."""
