"""Encoding of keys, and ciphertexts that can be decrypted only in their own context."""

from __future__ import annotations

import copy
import pickle
from base64 import b64encode, urlsafe_b64encode
from typing import Any

import msgspec
import pytest

from penstock import App
from penstock.config import Config, load
from penstock.core.formats import shown_text
from penstock.core.job import Job, NewJob, State
from penstock.encryption import (
    CannotDecrypt,
    Cipher,
    EncryptionKey,
    Keyring,
    additional_data,
    is_envelope,
    new_key,
    read_keys,
    why_unreadable,
)
from penstock.errors import ConfigError

SECRET = bytes(range(200, 232))
HERE, THERE = (
    additional_data("arguments", "", "mail", "send", "1"),
    additional_data("arguments", "", "mail", "send", "2"),
)


def cipher(*secrets: bytes, **options: Any) -> Cipher:
    return Cipher(Keyring(secrets or (SECRET,)), **options)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        bytearray(SECRET),
        b64encode(SECRET).decode(),
        urlsafe_b64encode(SECRET).decode(),
        urlsafe_b64encode(SECRET).decode().rstrip("="),
        f" {b64encode(SECRET).decode()} ",
        [SECRET],
    ],
)
def test_a_key_is_32_bytes_or_their_base64(written: Any) -> None:
    assert read_keys(written) == [SECRET]


def test_several_stand_in_a_list_or_between_commas() -> None:
    first, second = new_key(), new_key()
    assert (
        read_keys(f"{first},{second}")
        == read_keys([first, second])
        == [*read_keys(first), *read_keys(second)]
    )


@pytest.mark.parametrize(
    "wrong",
    ["correct horse battery staple", "c2VjcmV0", b"secretsecret", 7, None, {"secret": 1}, ["secret!"], ""],
)
def test_an_invalid_key_gives_an_error_that_does_not_quote_it(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="penstock keygen") as caught:
        read_keys(wrong, "App(): key")
    said = str(caught.value)
    assert said.startswith("App(): key")
    assert not any(word in said for word in ("horse", "c2Vj", "secret"))


def test_an_empty_list_of_keys_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="there is none"):
        App("memory://", key=[])


def test_new_keys_are_keys_and_differ() -> None:
    assert len({new_key() for _ in range(10)}) == 10
    assert len(read_keys(new_key())[0]) == 32


def test_nothing_shows_a_key() -> None:
    text = b64encode(SECRET).decode()
    app = App("memory://", key=text)
    loaded = load(env={"PENSTOCK_KEY": text})
    shown = " ".join(
        map(
            repr,
            (
                EncryptionKey(SECRET),
                Keyring([SECRET]),
                app,
                vars(app),
                loaded.config,
                loaded.settings,
                app.store,
                Config(),
            ),
        )
    )
    assert text not in shown
    assert repr(SECRET)[2:20] not in shown
    assert next(one.value for one in loaded.settings if one.name == "key") == "***"


def test_a_key_is_not_pickled() -> None:
    for spread in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            spread(Keyring([SECRET]).first)


def test_the_environment_and_the_file_may_have_the_key(tmp_path: Any) -> None:
    file = tmp_path / "penstock.toml"
    first, second = new_key(), new_key()
    file.write_text(f'key = ["{first}", "{second}"]\nencrypt = false\n')
    config = load(env={}, file=file).config
    assert (config.key, config.encrypt, config.key_required) == (f"{first},{second}", False, False)
    assert load(env={"PENSTOCK_KEY": second}, file=file).config.key == second


def test_a_wrong_key_in_the_environment_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_KEY: ") as caught:
        load(env={"PENSTOCK_KEY": "hunter2hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("option", ["encrypt", "key_required"])
def test_switches_are_true_or_false(option: str) -> None:
    options: dict[str, Any] = {option: "no"}
    with pytest.raises(ConfigError, match=f"{option}='no' is not True or False"):
        App("memory://", key=SECRET, **options)


# ── encrypting and decrypting ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encrypt", [True, False])
@pytest.mark.parametrize("data", [b"", b"{}", b'{"a":"}"}', b"\x00\xff", b"x" * 100_000])
def test_a_ciphertext_can_be_decrypted_only_in_its_context(data: bytes, encrypt: bool) -> None:
    one = cipher(encrypt=encrypt)
    encrypted = one.encrypt(data, HERE)
    assert is_envelope(encrypted)
    assert one.decrypt(encrypted, HERE) == one.decrypt(encrypted, THERE, HERE) == data
    with pytest.raises(CannotDecrypt, match="moved from another"):
        one.decrypt(encrypted, THERE)


@pytest.mark.parametrize("encrypt", [True, False])
def test_not_one_byte_of_it_can_be_changed(encrypt: bool) -> None:
    one = cipher(encrypt=encrypt, required=True)
    encrypted = one.encrypt(b'{"to":"ada"}', HERE)
    for i in range(len(encrypted)):
        with pytest.raises(CannotDecrypt):
            one.decrypt(encrypted[:i] + bytes([encrypted[i] ^ 1]) + encrypted[i + 1 :], HERE)
        with pytest.raises(CannotDecrypt):
            one.decrypt(encrypted[:i], HERE)


def test_what_is_encrypted_is_json() -> None:
    for encrypt in (True, False):
        encrypted = cipher(encrypt=encrypt).encrypt(b'{"a":1}', HERE)
        (name, *_) = msgspec.json.decode(encrypted)
        assert name in ("$sealed", "$signed")


def test_equal_bytes_have_equal_ciphertexts_only_on_request() -> None:
    one = cipher()
    assert one.encrypt(b"{}", HERE) != one.encrypt(b"{}", HERE)
    assert one.encrypt(b"{}", HERE, deterministic=True) == one.encrypt(b"{}", HERE, deterministic=True)
    assert one.encrypt(b"{}", HERE, deterministic=True) != one.encrypt(b"{}", THERE, deterministic=True)
    assert one.encrypt(b"{}", HERE, deterministic=True) != one.encrypt(b"[]", HERE, deterministic=True)
    assert one.decrypt(one.encrypt(b"{}", HERE, deterministic=True), HERE) == b"{}"


def test_a_place_is_not_another_whose_words_run_together() -> None:
    assert additional_data("a", "bc") != additional_data("ab", "c")


def test_the_first_key_writes_and_all_read() -> None:
    old, new = bytes(32), SECRET
    encrypted = cipher(old).encrypt(b"{}", HERE)
    assert cipher(new, old).decrypt(encrypted, HERE) == b"{}"
    assert EncryptionKey(new).id.encode() in cipher(new, old).encrypt(b"{}", HERE)
    with pytest.raises(CannotDecrypt, match=f"its key is {EncryptionKey(old).id}, which this app has not"):
        cipher(new).decrypt(encrypted, HERE)


def test_clear_bytes_are_as_they_are_unless_a_key_is_required() -> None:
    assert cipher().decrypt(b"{}", HERE) == b"{}"
    with pytest.raises(CannotDecrypt, match="key_required"):
        cipher(required=True).decrypt(b"{}", HERE)


def test_texts_are_encrypted_with_all_their_contents() -> None:
    one = cipher()
    for text in ("boom", "ünï", "$sealed:1.", "x" * 9_000):
        encrypted = one.encrypt_text(text, HERE)
        assert "boom" not in encrypted
        assert encrypted.isascii()
        assert one.decrypt_text(encrypted, THERE, HERE) == text
        assert one.decrypt_text(encrypted, THERE).startswith("(encrypted; ")
    assert one.decrypt_text(one.encrypt_text("half \ud800", HERE), HERE) == "half \\ud800"
    assert one.encrypt_text("", HERE) == ""
    assert one.decrypt_text("clear", HERE) == "clear"
    assert cipher(encrypt=False).encrypt_text("boom", HERE) == "boom"


def test_users_without_the_key_see_which_values_are_encrypted() -> None:
    text = cipher().encrypt_text("boom", HERE)
    key = EncryptionKey(SECRET).id
    assert shown_text(f"ValueError: {text}") == f"ValueError: (encrypted with the key {key})"
    assert shown_text("ValueError: $5") == "ValueError: $5"


@pytest.mark.parametrize("envelope", ['{"$sealed":"1.%s.AAAA"}', '{"$signed":"1.%s.AAAA","is":1}'])
def test_an_invalid_key_id_is_not_quoted(envelope: str) -> None:
    """It goes into logs and to terminals, and anybody who writes to the store may have put it there."""
    control = "\x1b[2J\x1b[H\n"
    data = (envelope % control).encode()
    with pytest.raises(CannotDecrypt, match="unknown") as refused:
        cipher().decrypt(data, HERE)
    job = Job(NewJob("1", "send", data), State.AVAILABLE)
    for said in (
        str(refused.value),
        why_unreadable(job),
        cipher().decrypt_text(f"$sealed:1.{control}.AAAA", HERE),
    ):
        assert said
        assert said.isprintable()


def test_unique_keys_are_marked_once_and_by_key() -> None:
    one = cipher()
    marked = one.hash_unique_key("0123")
    assert marked == one.hash_unique_key("0123") == one.hash_unique_key(marked)
    assert marked != one.hash_unique_key("0124")
    assert marked != cipher(bytes(32)).hash_unique_key("0123")
    assert "0123" not in marked
