"""Keeps worker processes alive, keeps leases for those that cannot, and takes back the work of dead ones."""

from penstock.worker.supervisor.supervisor import supervise

__all__ = ["supervise"]
