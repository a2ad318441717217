"""What the processes of a run do: the tasks, who enqueues them, and the ways to start a worker."""
