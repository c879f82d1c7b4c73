"""Preparation and execution of requests: one file for each modality, the records of a run, and its runner."""
