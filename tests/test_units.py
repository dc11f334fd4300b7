from dippm import units


def test_mebibytes() -> None:
    assert units.bytes_to_mib(2**21) == 2.0
    assert units.mib_to_bytes(units.bytes_to_mib(12345)) == 12345
