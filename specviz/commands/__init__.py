"""The commands of ``python -m specviz``, one file each: its arguments and its execution."""
