"""A Ray cluster of two nodes of one core each on this machine."""

from __future__ import annotations

from typing import Any

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
_NUM_TRIES = 5


def two_nodes() -> tuple[Any, Any]:
    """A cluster, and its second node. On a busy machine, nodes are not always up within Ray's 30 seconds."""
    from ray.cluster_utils import Cluster

    for tries_left in reversed(range(_NUM_TRIES)):
        cluster = None
        try:
            cluster = Cluster(initialize_head=True, head_node_args=NODE)
            node = cluster.add_node(**NODE)
            cluster.wait_for_nodes()
            return cluster, node
        except Exception:  # whatever Ray raises when a node is not up in time
            if cluster is not None:
                cluster.shutdown()
            if not tries_left:
                raise
    raise AssertionError
