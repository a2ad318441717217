"""Servers, disks and proxies that a chaos run starts for itself and may harm."""
