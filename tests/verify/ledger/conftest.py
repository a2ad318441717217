from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.ledger.honest_ledger import Account


@pytest.fixture
async def account(tmp_path: Path) -> Account:
    """Work that was done and written down honestly."""
    account = Account(tmp_path / "ledger")
    await account.run()
    return account
