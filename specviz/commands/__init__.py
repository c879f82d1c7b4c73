"""The commands of ``python -m specviz``, one module each. ``assets/commands.toml`` defines the arguments."""
