"""The lock of what belongs to the whole process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dippm.frontends.process_lock import PROCESS_LOCK


def can_take() -> bool:
    has_it = PROCESS_LOCK.acquire(blocking=False)
    if has_it:
        PROCESS_LOCK.release()
    return has_it


def test_who_has_it_takes_it_again_and_others_wait_until_it_is_given_back_as_often() -> None:
    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(can_take).result()
        with PROCESS_LOCK:
            # Would it not be re-entrant, this thread would wait for itself.
            assert can_take()
            # It was taken twice by now and given back once.
            assert not elsewhere.submit(can_take).result()
        assert elsewhere.submit(can_take).result()


def test_it_is_given_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="in between"), PROCESS_LOCK:
        raise ValueError("in between")
    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(can_take).result()
