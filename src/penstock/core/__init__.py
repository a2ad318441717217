"""Jobs and their lifecycle: values and pure functions, without I/O."""
