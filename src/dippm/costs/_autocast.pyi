from dippm.costs.edges import IndexArray

def follow(
    target: IndexArray,
    result: IndexArray,
    read_start: IndexArray,
    read_tensor: IndexArray,
    write_start: IndexArray,
    write_tensor: IndexArray,
    owner: IndexArray,
    flags: IndexArray,
    held: IndexArray,
    reads: IndexArray,
    casts: IndexArray,
    castable: int,
    float32: int,
) -> int: ...
