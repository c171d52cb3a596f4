"""Signatures of the entries in a key-value store, and the handshake of the processes with the same token."""

from __future__ import annotations

import functools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Entries that an unauthenticated writer may add to the key-value store, and no session does.
from hookline.coordination.agreement import Agreement
from hookline.coordination.key_value_store import (
    TOKEN,
    TOKEN_PATH,
    MemoryKeyValueStore,
    SignedKeyValueStore,
    Signer,
    find_token,
    handshake,
)
from hookline.coordination.liveness import LivenessMonitor
from hookline.coordination.process_group import ProcessGroup
from hookline.errors import UnauthenticatedError

SECRET, OTHER = b"a secret of the job", b"a secret of another"


@given(st.text(), st.text(), st.text(), st.text())
def test_signed_text_verifies_only_with_its_secret_key_and_signature(place, text, other_place, other_text):
    seal = Signer(SECRET)
    sealed = seal.sign(place, text)
    assert seal.verify(place, sealed) == text
    assert Signer(OTHER).verify(place, sealed) is None
    assert seal.for_attempt("attempt 2").verify(place, sealed) is None
    assert seal.verify(place, text) is None
    if other_place != place:
        assert seal.verify(other_place, sealed) is None
    if other_text != text:
        assert seal.verify(place, sealed.removesuffix(text) + other_text) is None
    for end in range(len(sealed) - len(text)):
        assert seal.verify(place, sealed[:end]) is None


def test_signature_separates_the_key_from_the_text():
    seal = Signer(SECRET)
    assert seal.verify("a", seal.sign("ab", "c").replace(":c", ":bc")) is None


def greet(*secrets, store=None):
    """Performs the handshake in a thread per process; returns the signer of each, or the error."""
    store, found = store or MemoryKeyValueStore(), [None] * len(secrets)

    def work(index):
        ask = functools.partial(ProcessGroup(store, index, len(secrets)).all_reduce, timeout_secs=5)
        try:
            found[index] = handshake(ask, secrets[index], index)
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(secrets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_processes_with_the_same_token_have_equal_signatures_until_the_next_start():
    first, second, third = greet(SECRET, SECRET, SECRET)
    assert third.verify("key", first.sign("key", "go on")) == "go on"
    assert second.verify("key", third.sign("key", "go on")) == "go on"
    again, _, _ = greet(SECRET, SECRET, SECRET)
    assert again.verify("key", first.sign("key", "stop")) is None


def test_processes_without_a_token_have_no_signature():
    assert greet(None, None) == [None, None]


@pytest.mark.parametrize(
    ("secrets", "told"),
    [
        ((SECRET, None, SECRET), "process 1 has no token, and process 0 has one"),
        ((None, SECRET, None), "process 1 has a token, and process 0 has none"),
        ((SECRET, OTHER, SECRET), "process 1 has another token than process 0"),
    ],
)
def test_processes_with_different_tokens_all_fail_at_the_start(secrets, told):
    errors = greet(*secrets)
    assert [type(error) for error in errors] == [UnauthenticatedError] * 3, errors
    assert told in str(errors[0])
    assert told in str(errors[2])
    assert "process 0 has" in str(errors[1])


def test_entry_copied_from_an_earlier_start_is_refused():
    class Watched(MemoryKeyValueStore):
        entries: list = []  # noqa: RUF012

        def set(self, key, value):
            self.entries.append((key, value))
            return super().set(key, value)

    assert all(greet(SECRET, SECRET, store=Watched()))
    for copied in Watched.entries:  # The greeting of one process, or the answer.
        store = MemoryKeyValueStore()
        store.set(*copied)
        errors = [found for found in greet(SECRET, SECRET, store=store) if isinstance(found, Exception)]
        assert errors, copied
        assert all(isinstance(error, UnauthenticatedError) for error in errors)


@pytest.mark.parametrize("forged", ["stop", '"stop"', "[[]]", "{}", '"[0, 1]"', '"[0, [2]]"', '"[0, {}]"'])
def test_entry_written_by_a_stranger_before_the_start_is_refused(forged):
    for secret in (SECRET, None):
        store = MemoryKeyValueStore()
        store.set("peers/0/handshake/0/answer", forged)
        found = greet(secret, secret, store=store)
        assert isinstance(found[1], UnauthenticatedError), found


def test_forged_decision_is_an_error_before_the_next_run():
    store = MemoryKeyValueStore()
    ours = SignedKeyValueStore(store, Signer(SECRET))
    agreement = Agreement(ours, 0, 1, "ours")
    assert agreement.before_run() is None
    store.set("agreement/ours/0/decision", '[1, [[0, "stop", null]]]')
    agreement.propose("note")
    with pytest.raises(UnauthenticatedError, match="'agreement/ours/0/decision'"):
        agreement.before_run()
    agreement.close()


def test_forged_request_ends_the_wait_of_the_agreement():
    store = MemoryKeyValueStore()
    agreement = Agreement(SignedKeyValueStore(store, Signer(SECRET)), 0, 1, "ours")
    store.set("agreement/ours/0/call", "call")
    agreement._thread.join(10)
    with pytest.raises(UnauthenticatedError, match="'agreement/ours/0/call'"):
        agreement.before_run()
    agreement.close()


def test_forged_liveness_check_is_reported():
    store, ended = MemoryKeyValueStore(), []
    monitor = LivenessMonitor(ProcessGroup(SignedKeyValueStore(store, Signer(SECRET)), 0, 1))
    monitor.on_end = ended.append
    store.set("liveness/0/call", 'broadcast [1, 0, "stop"]')
    monitor._thread.join(10)
    assert ended == [None]
    assert "'liveness/0/call'" in str(monitor.error)
    monitor.close()


def test_token_comes_from_the_argument_the_launcher_or_a_named_file(tmp_path):
    (tmp_path / "given").write_text("given" * 8 + "\n")
    (tmp_path / "named").write_text("named" * 8)
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    environ = {TOKEN: "launched" * 8, TOKEN_PATH: str(tmp_path / "named")}
    assert find_token(str(tmp_path / "given"), dict(environ)) == b"given" * 8
    assert find_token(None, environ) == b"launched" * 8
    assert environ.keys() == {TOKEN_PATH}, "It does not reach processes that this one starts."
    assert find_token(None, environ) == b"named" * 8
    assert find_token(None, {}) is None


def test_missing_short_or_readable_token_is_an_error(tmp_path, caplog):
    with pytest.raises(UnauthenticatedError, match=r"absent is not a file.*HOOKLINE_TOKEN_PATH"):
        find_token(str(tmp_path / "absent"), {})
    with pytest.raises(UnauthenticatedError, match=r"token file /proc/self/mem cannot be read: Input/output error"):
        find_token("/proc/self/mem", {})
    with pytest.raises(UnauthenticatedError, match=r"cannot be read: File name too long"):
        find_token("a" * 300, {})
    caplog.clear()
    short = tmp_path / "short"
    short.write_text("guess me\n")
    short.chmod(0o644)
    with pytest.raises(UnauthenticatedError, match=r"short has 8 characters.*token_hex"):
        find_token(str(short), {})
    assert [record.message for record in caplog.records] == [
        f"The token file {short} can be read by others: chmod 600 it."
    ]
