"""One module per command, each with its click command as `command`."""
