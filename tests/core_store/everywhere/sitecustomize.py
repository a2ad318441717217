"""For processes of a test with this folder in PYTHONPATH: each store that they open has the core alone."""

from __future__ import annotations

from typing import Any

from penstock.stores import connect as connecting
from penstock.stores.contract import Store
from tests.core_store.core_alone import CoreAlone

_connect = connecting.connect


def _core_alone(*args: Any, **options: Any) -> Store:
    return CoreAlone(_connect(*args, **options))


connecting.connect = _core_alone
