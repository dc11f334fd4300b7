from dippm.costs.edges import IndexArray

def join(
    reader: IndexArray,
    writer: IndexArray,
    flags: IndexArray,
    part: IndexArray,
    stretch: IndexArray,
    place: IndexArray,
    kernel: IndexArray,
    far: int,
) -> None: ...
