"""The data of the shop, in a database of its own. Create the tables: `python -m shop.database`."""

import os
import sqlite3
from datetime import UTC, datetime

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
Session = sessionmaker(engine)

if engine.dialect.name == "sqlite":
    # SQLite has one writer at a time: transactions wait for their turn at their beginning, not in the middle.
    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 30000")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)  # SQLite keeps no time zone


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]
    quantity: Mapped[int]
    email: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(default=now)
    confirmed_at: Mapped[datetime | None]


class Mail(Base):
    """A mail that was sent. A real shop calls a mail provider, with `key` as its idempotency key."""

    __tablename__ = "mails"

    key: Mapped[str] = mapped_column(primary_key=True)
    to: Mapped[str]
    text: Mapped[str]
    sent_at: Mapped[datetime] = mapped_column(default=now)


def create_tables() -> None:
    Base.metadata.create_all(engine)


if __name__ == "__main__":
    create_tables()
