"""The same objects for the API server of the one-machine lab, Kubernetes 1.20, which is older than two of their versions."""

from __future__ import annotations

from specstudy.deploy.objects import Object

# kind: (what is shipped, the newest that 1.20 serves). Both have the same fields as far as ours use them; a test applies every object.
OLDER = {
    "HorizontalPodAutoscaler": ("autoscaling/v2", "autoscaling/v2beta2"),  # v2 came with 1.23
    "PodDisruptionBudget": ("policy/v1", "policy/v1beta1"),  # v1 came with 1.21
}


def for_lab(manifest: Object) -> Object:
    """`manifest` with its apiVersion replaced where 1.20 needs it, and nothing else changed."""
    shipped, older = OLDER.get(manifest["kind"], (None, None))
    return {**manifest, "apiVersion": older} if manifest["apiVersion"] == shipped else manifest
