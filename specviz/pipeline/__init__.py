"""Preparation of requests: one file for each modality."""
