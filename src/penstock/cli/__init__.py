"""The command line: one module per command, rendering what `inspector` and `worker` do."""
