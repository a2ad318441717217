"""Stores: one package per store, each behind the contract in `penstock.stores.contract`."""
