"""Manifests for a cluster, made from the same Deployment that the chapters launch."""
