"""The commands of ``python -m specviz``, one file each; their arguments are in ``assets/commands.toml``."""
