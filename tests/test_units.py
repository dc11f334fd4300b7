from dippm import units


def test_mebibytes() -> None:
    assert units.bytes_to_mib(2**21) == 2.0
