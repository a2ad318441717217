"""What each verb asks of the server, and what it makes of the answers."""
