"""What a store needs from time to time, whoever runs it: promote, reclaim, prune."""
