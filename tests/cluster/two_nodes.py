"""A program that is a Ray cluster of two nodes on this machine, for as long as its stdin is open.

It prints its address and the one for clients, and obeys the lines ``remove`` (kill the second node), ``add`` (start
another one) and ``behead`` (kill the server that keeps the cluster's state), each answered with a line.
Each node says that it has as many GPUs as DIPPM_TEST_GPUS names.
"""

from __future__ import annotations

import os
import socket
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray.cluster_utils import Cluster

_NODE = {"num_cpus": 1, "num_gpus": int(os.environ.get("DIPPM_TEST_GPUS", 0)), "object_store_memory": 80 * 2**20}


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    head = {**_NODE, "include_dashboard": False, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
    try:
        nodes = [cluster.add_node(**_NODE)]
        _say(f"{cluster.address} ray://127.0.0.1:{port}")
        for line in sys.stdin:
            if line.strip() == "remove":
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            elif line.strip() == "add":
                nodes.append(cluster.add_node(**_NODE))
            elif line.strip() == "behead":
                cluster.head_node.kill_gcs_server()
            _say("done")
    finally:
        cluster.shutdown()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
