"""Whether the service is about to stop."""

from dippm.server.state import ServiceState


def test_a_service_that_was_told_to_stop_says_so_to_all_who_share_its_state() -> None:
    state = ServiceState()
    shared = state
    assert not shared.is_draining
    state.is_draining = True
    assert shared.is_draining
    assert not ServiceState().is_draining
