"""Writes facts: what producers, workers and a store do and answer."""
