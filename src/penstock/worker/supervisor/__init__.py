"""Restarts worker processes, extends leases for blocked ones, and reclaims the jobs of dead ones."""

from penstock.worker.supervisor.supervisor import supervise

__all__ = ["supervise"]
