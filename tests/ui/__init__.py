"""Tests of the page: handlers as plain functions, then the running app."""
