"""Preparation and execution of requests."""
