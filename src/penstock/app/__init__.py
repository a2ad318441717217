"""What a user holds: the app, its tasks, queues and periodic entries, and what runs inside an attempt."""
