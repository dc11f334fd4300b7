import gc

import pytest

from dippm.processes.collection_pause import collection_paused


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_as_it_was(was_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with collection_paused(), collection_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if before else gc.disable)()
