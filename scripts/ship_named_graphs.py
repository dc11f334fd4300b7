"""Read the models of ``dippm.api.named_models.SHIPPED_NAMES`` and write their graphs into the package."""

from __future__ import annotations

import argparse
import os
import shutil

# Nothing may come from a graph that was kept or shipped before.
os.environ["DIPPM_CACHE"] = ""

from dippm.api.named_models import SHIPPED_FOLDER, SHIPPED_NAMES, SHIPPED_PROOF_BATCH, ship_graph
from dippm.costs.conditions import Mode
from dippm.frontends.inputs import InputShapes
from dippm.frontends.open_model import open_model


def main() -> None:
    """Write all graphs anew."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    shutil.rmtree(SHIPPED_FOLDER, ignore_errors=True)
    for name in SHIPPED_NAMES:
        for mode in Mode:
            graph = open_model(name, input=InputShapes(), mode=mode, batch_hint=SHIPPED_PROOF_BATCH)
            if graph.fixed_batch is not None:
                raise SystemExit(f"{name} in {mode} does not hold for every batch: {graph.fixed_batch_reason}")
            ship_graph(name, graph, mode=mode)


if __name__ == "__main__":
    main()
