"""A chaos run on a store of the user's own, with an account outside of it: what `penstock verify` runs."""
