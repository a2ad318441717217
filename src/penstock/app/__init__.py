"""The user's side: the app, its tasks, queues and periodic entries, and the running attempt."""
