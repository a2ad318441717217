"""Connections to Redis servers: send commands and return replies. This package knows nothing about jobs."""
