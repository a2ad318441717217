"""The promises, a file for each concern: every rule reads the history and yields what breaks it."""
