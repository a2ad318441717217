"""Further namespaces of one store, on the same connections: `store.in_namespace("team-b")`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from penstock.core import forks
from penstock.core.ids import check_namespace

__all__ = ["NamespaceViews"]


class NamespaceViews:
    """A store that makes views of other namespaces, one for each, and keeps them as long as itself."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._origin: Self | None = None  # the store of which this one is a view
        self._views: dict[str, Self] = {}
        self._views_lock = forks.lock()

    def in_namespace(self, namespace: str) -> Self:
        """Return the store's view of this namespace: the same object each time. Raises ConfigError."""
        if check_namespace(namespace) == self.namespace:
            return self
        if self._origin is not None:
            return self._origin.in_namespace(namespace)
        with self._views_lock:
            view = self._views.get(namespace)
            if view is None:
                view = self._views[namespace] = self._view(namespace)
                view._origin = self
            return view

    @abstractmethod
    def _view(self, namespace: str) -> Self:
        """Make a store of another namespace, on the connections of this one."""
