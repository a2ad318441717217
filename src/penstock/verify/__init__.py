"""The chaos test of `penstock verify`: does a store keep Penstock's guarantees on this server?"""
