"""Connections to Redis servers: sends commands and returns replies. Knows nothing of jobs."""
